"""Each check on hand-made histories: one that is valid, one that must be invalid (the planted failure), one that
cannot be judged. A check that cannot fail would fail here."""

from __future__ import annotations

from typing import Any

import pytest

from lab.scenario.vocabulary import hook_ids, skipped

OK, OOM = 0, 2


def text(expect: str, *, steps: str = "[init, {alloc: {bytes: 1MiB, as: x}}]", more: str = "", count: int = 2) -> str:
    return f"""\
name: t
containers:
  c:
    limits: {{memory: 4MiB}}
    processes:
      - {{name: p, count: {count}, steps: {steps}}}
expect:
  - {expect}
{more}"""


def ended(process: int, step: int, result: int = OK, **values: int) -> dict[str, Any]:
    return {"event": "STEP_END", "process": process, "step": step, "result": result, **values}


def gone(process: int, status: int = 0) -> dict[str, Any]:
    return {"event": "EXIT", "process": process, "a": status}


def _maker(event: str):
    def make(**values: int) -> dict[str, Any]:
        return {"event": event, **values}

    return make


phys, phys_end, ledger_end = _maker("PHYS"), _maker("PHYS_END"), _maker("LEDGER_END")
unexecuted, fired, engine = _maker("NOT_EXECUTED"), _maker("FAULT"), _maker("ENGINE")

BOTH = [ended(0, 0), ended(1, 0)]

OUTCOME = "outcome: {step: x, ok: 1, oom: 1}"
VIEW = "view: {step: v, total: 4MiB, free: {min: 1MiB}}"
VIEW_STEPS = "[{view: {as: v}}]"
ABOVE = "never_above: {memory: 4MiB}"
OF_PROCESS = text("never_above: {memory: 1MiB, of: process}")
OF_DEVICE = text("never_above: {memory: 1MiB, of: device}")
KILLED_ONE = text("exit: {process: p, signal: SIGKILL, count: 1}")
EMPTY = "ledger_empty: {at: end}"
NOTHING_HELD = [ledger_end(), phys_end()]
ORDER = "order: {phases: [preinit_enter, real_enter], once: true}"
CALLS = "calls: {name: cuInit, count: {min: 2}}"
CALLS_MORE = "options: {history: calls}"
FIRED = "faults_fired: {fault: 1, count: 1}"
FAULT = "faults: [{at: cuMemAlloc_v2, delay: 1ms}, {at: cuMemFree_v2, delay: 1ms}]"


def phase(process: int, number: int, **more: int) -> dict[str, Any]:
    return {"event": "PHASE", "process": process, "a": number, "pid": process + 10, **more}


def cu_init() -> dict[str, Any]:
    return {"event": "CALL", "name": hook_ids()["cuInit"]}


def call(name: str, pointer: int, **more: int) -> dict[str, Any]:
    return {
        "event": "CALL",
        "name": hook_ids()[name],
        "process": 0,
        "pid": 10,
        "tid": 10,
        "a": 4096,
        "b": pointer,
        **more,
    }


def held(pointer: int = 0) -> dict[str, Any]:
    """What the program still has at its end; without a pointer, the end of that list."""
    return {"event": "HELD", "process": 0, "pid": 3, "tid": 10, "a": 4096, "b": pointer}


def returned(name: str, result: int, **values: int) -> dict[str, Any]:
    return {**ended(0, 1, result, **values), "name": hook_ids()[name]}


LEAK = text("no_leak: {at: end}", more=CALLS_MORE, count=1)
RESULTS = text("known_results: {of: steps}")
OUTPUTS = text("outputs_untouched: {of: steps}")
LOST = [call("cuMemAllocAsync", 64), held()]
ENDED_CONTEXT = [*LOST[:1], call("cuDevicePrimaryCtxReset_v2", 0), held()]
STARTED = """name: t
simulate: {phases: {workers: 2, plan: [{name: a, time: 1 ms}]}}
expect: [{start_up: {p50: 1 ms, latencies: [1 ms, 2 ms], gave_up: 0, timeouts: {max: 3}}}]
"""
SHARED = """name: t
simulate: {pacing: {tenants: [{pattern: sync, target: 30}]}}
expect: [{share: {mae: {max: 1.5}, achieved: {min: 29, max: 31}, jain: {min: 0.99}}}]
"""


def burst(second: int, gave_up: int = 0) -> dict[str, Any]:
    one = {"condition": "phases", "workers": 2, "latencies": [second, 1_000_000], "timeouts": 0, "gave_up": gave_up}
    return {"info": {"simulated": {"bursts": [one]}}}


def tenant(mae: float, jain: float = 1.0) -> dict[str, Any]:
    one = {"achieved": 30.2, "mae": mae, "long_run": 0.1}
    return {"info": {"simulated": {"tenants": [one], "jain": jain}}}


PRINTED = """name: t
containers: {c: {processes: [{name: p, run: ["true"]}]}}
expect: [{reported: {process: p, x: {min: 1, max: 2}, y: 0.5}}]
"""
AT_BARRIER = text("held: {barrier: b, memory: {min: 1MiB, max: 4MiB}}", steps="[{barrier: b}, init]")
TIER = text("identity: {tier: [broker, procfs]}")
MEASURED = """name: t
measure: {calls: {}}
expect: [{added: {figure: f, live: 5, ns: {max: 50}, percent: {max: 1}}}]
"""


LEDGER_NOTHING = {"event": "LEDGER_END", "a": 0, "b": 0}


def at_end(size: int) -> dict[str, Any]:
    return {"info": {"held": [{"barrier": None, "container": "c", "bytes": size}]}}


def printed(**figures: float) -> dict[str, Any]:
    return {"info": {"processes": [{"index": 0, "reported": figures}]}}


def driver_says(size: int, container: str = "c") -> dict[str, Any]:
    return {"info": {"held": [{"barrier": "b", "container": container, "bytes": size}]}}


def asked(tier: int, pid: int, outcome: int = 1) -> list[dict[str, Any]]:
    return [
        {"event": "SPAWN", "a": 77},
        {"event": "IDENTITY", "a": tier, "b": pid, "extra": outcome},
    ]


OVER = """name: t
node: {execute: bridge}
containers: {c: {processes: [{name: p, steps: [init]}]}}
expect: [{bridged: {kernel: vadd, count: 2, wrong: 0}}]
"""


def job(status: int = 0, wrong: int = 0, kernel: int = 2) -> dict[str, Any]:
    return {"event": "BRIDGE", "a": kernel << 56 | 100, "result": status, "extra": wrong}


def measured(added: float, evidence: str = "real-gpu", **more: Any) -> dict[str, Any]:
    row = {"call": "f", "live": 5, "bare_ns": 10_000, "added_ns": added, "control_ns": None, "failed": 0, **more}
    return {"info": {"evidence": evidence, "measured": [row]}}


CASES = [  # (check, scenario, rows, losses, verdict, part of what is seen)
    ("reported", PRINTED, [], printed(x=2, y=0.5), "valid", "x 2, y 0.5"),
    ("reported", PRINTED, [], printed(x=3, y=0.5), "invalid", "x 3"),
    ("reported", PRINTED, [], printed(x=1), "invalid", "no y"),
    ("reported", PRINTED, [], {"info": {"interrupted": True}}, "unknown", "no x"),
    ("held", AT_BARRIER, [], driver_says(4 << 20), "valid", "c: 4MiB"),
    ("held", AT_BARRIER, [], driver_says((4 << 20) + 1), "invalid", "c: "),
    ("held", AT_BARRIER, [], driver_says(0), "invalid", "0B"),
    ("held", AT_BARRIER, [], driver_says(2 << 20, "other"), "unknown", "nobody could ask"),
    ("identity", TIER, asked(1, 77), {}, "valid", "broker: 1"),
    ("identity", TIER, asked(1, 78), {}, "invalid", "broker with a wrong PID: 1"),
    ("identity", TIER, asked(3, 77), {}, "invalid", "probe: 1"),
    ("identity", TIER, asked(0, 0), {}, "invalid", "unknown: 1"),
    ("identity", TIER, asked(1, 77, outcome=0), {}, "invalid", "nobody asked"),
    ("identity", TIER, [], {}, "unknown", "nobody asked"),
    ("bridged", OVER, [job(), job(), job(kernel=1)], {}, "valid", "ok: 2, 0 wrong"),
    ("bridged", OVER, [job(), job(wrong=3)], {}, "invalid", "3 wrong"),
    ("bridged", OVER, [job(), job(2)], {}, "invalid", "cuda error: 1, ok: 1"),
    ("bridged", OVER, [job(), job(-1)], {}, "invalid", "none: 1"),
    ("bridged", OVER, [job()], {"dropped": 1}, "unknown", "ok: 1"),
    ("added", MEASURED, [], measured(50.0), "valid", "10 us + 50 ns (+0.50 %) at 5 live"),
    ("added", MEASURED, [], measured(51.0), "invalid", "51 ns"),
    ("added", MEASURED, [], measured(49.0, bare_ns=4_000), "invalid", "+1.23 %"),
    ("added", MEASURED, [], measured(50.0, control_ns=50.0), "valid", "control 50 ns"),
    ("added", MEASURED, [], measured(-80.0, control_ns=-60.0), "unknown", "noise hides the answer"),
    ("added", MEASURED, [], measured(80.0, control_ns=60.0), "unknown", "noise hides the answer"),
    ("added", MEASURED, [], measured(10.0, live=4), "unknown", "no such figure"),
    ("added", MEASURED, [], measured(51.0, "fake-driver"), "unknown", "only a real GPU's figures"),
    ("ledger_empty", text(EMPTY), [LEDGER_NOTHING], at_end(0), "valid", "nothing is held"),
    ("ledger_empty", text(EMPTY), [LEDGER_NOTHING], at_end(5 << 20), "invalid", "still hold 5MiB"),
    ("outcome", text(OUTCOME), [ended(0, 1), ended(1, 1, OOM)], {}, "valid", "ok: 1, oom: 1"),
    ("outcome", text(OUTCOME), [ended(0, 1), ended(1, 1)], {}, "invalid", "ok: 2"),
    (
        "outcome",
        text(OUTCOME),
        [ended(0, 1), ended(1, 1, OOM), ended(1, 1, 999)],
        {},
        "invalid",
        "CUDA_ERROR_UNKNOWN: 1",
    ),
    ("outcome", text(OUTCOME), [], {}, "invalid", "no end recorded"),
    ("outcome", text(OUTCOME), [ended(0, 1), ended(1, 1, OOM)], {"dropped": 1}, "unknown", "dropped"),
    ("outcome", text(OUTCOME), [ended(0, 1), ended(1, 1)], {"dropped": 1}, "invalid", "ok: 2"),
    ("outcome", text(OUTCOME), [ended(0, 1), ended(1, 1, skipped()), ended(1, 1, OOM)], {}, "valid", "ok: 1, oom: 1"),
    ("outcome", text("outcome: {step: x, process: p.1, ok: 1}"), [ended(0, 1, OOM), ended(1, 1)], {}, "valid", "ok: 1"),
    ("view", text(VIEW, steps=VIEW_STEPS), [ended(0, 0, a=4 << 20, b=2 << 20)], {}, "valid", "total 4MiB, free 2MiB"),
    ("view", text(VIEW, steps=VIEW_STEPS), [ended(0, 0, a=80 << 30, b=2 << 20)], {}, "invalid", "total 80GiB"),
    ("view", text(VIEW, steps=VIEW_STEPS), [ended(0, 0, a=4 << 20, b=1)], {}, "invalid", "free 1B"),
    ("view", text(VIEW, steps=VIEW_STEPS), [ended(0, 0, 3, a=4 << 20, b=4 << 20)], {}, "invalid", "NOT_INITIALIZED"),
    ("view", text(VIEW, steps=VIEW_STEPS), [], {}, "invalid", "never ended"),
    ("view", text(VIEW, steps=VIEW_STEPS), [], {"dropped": 3}, "unknown", "3 records were dropped"),
    ("values", text("values: {step: x, bytes: 5}"), [ended(0, 1, a=5)], {}, "valid", "bytes 5B"),
    ("values", text("values: {step: x, bytes: 5}"), [ended(0, 1, a=5), ended(1, 1, a=6)], {}, "invalid", "5B to 6B"),
    ("values", text("values: {step: x, bytes: 5}"), [ended(0, 1, a=5)], {"uncommitted": 1}, "unknown", "bytes 5B"),
    ("never_above", text(ABOVE), [phys(b=4 << 20), phys_end(b=4 << 20)], {}, "valid", "at most 4MiB"),
    ("never_above", text(ABOVE), [phys(b=(4 << 20) + 1)], {}, "invalid", "container c"),
    ("never_above", text(ABOVE), [phys(b=1), phys_end(b=5 << 20)], {}, "invalid", "5MiB"),
    ("never_above", text(ABOVE), [phys(b=1)], {"dropped": 9}, "unknown", "9 records were dropped"),
    ("never_above", text(ABOVE), [phys(b=1), phys_end(b=2)], {"dropped": 9}, "valid", "2B"),
    ("never_above", text(ABOVE), [], {}, "unknown", "no physical record"),
    ("never_above", text(ABOVE), [phys(b=9 << 20, container=1)], {}, "unknown", "no physical record"),
    ("never_above", OF_PROCESS, [phys(c=1 << 20)], {}, "valid", "p.0"),
    ("never_above", OF_PROCESS, [phys(c=2 << 20)], {}, "invalid", "p.0"),
    ("never_above", OF_PROCESS, [], {}, "unknown", "no physical record"),
    ("never_above", OF_DEVICE, [phys_end(container=0xFFFF, b=1)], {}, "valid", "device 0"),
    ("never_above", OF_DEVICE, [phys_end(container=0xFFFF, b=9 << 20)], {}, "invalid", "device 0"),
    ("never_above", OF_DEVICE, [phys_end(b=9 << 20)], {}, "unknown", "device 0"),
    ("ledger_empty", text(EMPTY), NOTHING_HELD, {}, "valid", "nothing is held"),
    ("ledger_empty", text(EMPTY), [ledger_end(a=5), phys_end()], {}, "invalid", "ledger holds 5B"),
    ("ledger_empty", text(EMPTY), [ledger_end(b=1), phys_end()], {}, "invalid", "1 slots"),
    ("ledger_empty", text(EMPTY), [ledger_end(), phys_end(a=7)], {}, "invalid", "driver holds 7B"),
    ("ledger_empty", text(EMPTY), [phys_end()], {}, "unknown", "no ledger could be read"),
    ("ledger_empty", text(EMPTY), [phys_end(a=7)], {}, "invalid", "driver holds 7B"),
    ("exit", text("exit: {process: p, code: 3}"), [gone(0, 3 << 8), gone(1, 3 << 8)], {}, "valid", "exit 3 × 2"),
    ("exit", text("exit: {process: p, code: 3}"), [gone(0, 3 << 8), gone(1, 9)], {}, "invalid", "SIGKILL × 1"),
    ("exit", KILLED_ONE, [gone(0), gone(1, 9)], {}, "valid", "SIGKILL × 1"),
    ("exit", KILLED_ONE, [gone(0, 9), gone(1, 9)], {}, "invalid", "SIGKILL × 2"),
    ("exit", text("exit: {process: p, code: 3}"), [gone(0, 3 << 8)], {}, "unknown", "unknown × 1"),
    ("exits", text(EMPTY), [gone(0), gone(1)], {}, "valid", "exit 0 × 2"),
    ("exits", text(EMPTY), [gone(0), gone(1, 11)], {}, "invalid", "SIGSEGV"),
    ("exits", text(EMPTY), [gone(0)], {}, "unknown", "unknown × 1"),
    ("order", text(ORDER), [phase(0, 2), phase(0, 7), phase(1, 2), phase(1, 7)], {}, "valid", "in order"),
    (
        "order",
        text(ORDER),
        [phase(0, 2), phase(0, 7), phase(1, 7), phase(1, 2)],
        {},
        "invalid",
        "p.1: real_enter before",
    ),
    ("order", text(ORDER), [phase(0, 2), phase(0, 2), phase(0, 7)], {}, "invalid", "preinit_enter × 2"),
    ("order", text(ORDER), [phase(0, 7)], {}, "invalid", "preinit_enter is missing"),
    ("order", text(ORDER), [], {}, "unknown", "no phases"),
    ("order", text(ORDER), [phase(0, 2), phase(0, 7)], {"dropped": 1}, "unknown", "in order"),
    ("no_leak", LEAK, [call("cuMemAlloc_v2", 64), call("cuMemFree_v2", 64), held()], {}, "valid", "so in 1 processes"),
    ("no_leak", LEAK, [call("cuMemAlloc_v2", 64), held(64), held()], {}, "valid", "so in 1 processes"),
    ("no_leak", LEAK, LOST, {}, "invalid", "4096 bytes at 0x40 from cuMemAllocAsync"),
    ("no_leak", LEAK, [call("cuMemAlloc_v2", 64, result=OOM), held()], {}, "valid", "so in 1 processes"),
    ("no_leak", LEAK, [call("cuMemAlloc_v2", 64), call("cuMemFree_v2", 0, result=1), held()], {}, "valid", "so in 1"),
    (
        "no_leak",
        LEAK,
        [returned("cuMemAlloc_v2", OK, b=64), call("cuMemAlloc_v2", 64), call("cuMemFree_v2", 0, result=1), held()],
        {},
        "invalid",
        "0x40",
    ),
    ("no_leak", LEAK, [*LOST[:1], gone(0, 9)], {}, "valid", "so in 1 processes"),
    ("no_leak", LEAK, [held(64), held()], {}, "invalid", "the program holds 1 allocations that the driver does not"),
    ("no_leak", LEAK, ENDED_CONTEXT, {}, "valid", "so in 1 processes"),
    ("no_leak", LEAK, [phys(a=4096, extra=1, pid=10), *ENDED_CONTEXT], {}, "invalid", "0x40"),
    ("no_leak", LEAK, LOST[:1], {}, "unknown", "1 unknown"),
    ("no_leak", LEAK, [{**LOST[0], "tid": 11}, held()], {}, "unknown", "1 unknown"),  # whose call it was cannot be told
    ("no_leak", LEAK, LOST, {"dropped": 1}, "unknown", "1 unknown"),
    ("known_results", RESULTS, [returned("cuMemAlloc_v2", OOM)], {}, "valid", "all known"),
    ("known_results", RESULTS, [returned("cuMemAlloc_v2", -1)], {}, "invalid", "cuMemAlloc_v2 returned -1"),
    ("known_results", RESULTS, [returned("cuMemAlloc_v2", skipped())], {}, "valid", "all known"),
    ("known_results", RESULTS, [], {"dropped": 1}, "unknown", "all known"),
    ("outputs_untouched", OUTPUTS, [returned("cuMemAlloc_v2", OOM)], {}, "valid", "untouched"),
    ("outputs_untouched", OUTPUTS, [returned("cuMemAlloc_v2", OOM, b=64)], {}, "invalid", "left the pointer 0x40"),
    ("outputs_untouched", OUTPUTS, [returned("cuMemGetInfo_v2", 999, a=5)], {}, "invalid", "left figures"),
    ("outputs_untouched", OUTPUTS, [returned("cuMemAlloc_v2", OK, b=64)], {"dropped": 1}, "unknown", "untouched"),
    ("calls", text(CALLS, more=CALLS_MORE), [cu_init(), cu_init()], {}, "valid", "2 calls"),
    ("calls", text(CALLS, more=CALLS_MORE), [cu_init()], {}, "invalid", "1 calls"),
    ("calls", text(CALLS, more=CALLS_MORE), [cu_init(), cu_init()], {"dropped": 1}, "unknown", "2 calls"),
    ("not_executed", text("not_executed: {count: 1}"), [unexecuted()], {}, "valid", "1"),
    ("not_executed", text("not_executed: {count: 0}"), [unexecuted()], {}, "invalid", "1"),
    ("not_executed", text("not_executed: {count: 0, process: p.1}"), [unexecuted()], {}, "valid", "0"),
    ("not_executed", text("not_executed: {count: 1}"), [], {"dropped": 1}, "unknown", "0"),
    ("faults_fired", text(FIRED, more=FAULT), [fired(a=1)], {}, "valid", "fired × 1"),
    ("faults_fired", text(FIRED, more=FAULT), [fired(a=0)], {}, "invalid", "fired × 0"),
    ("faults_fired", text("faults_fired: {count: 1}", more=FAULT), [], {"dropped": 1}, "unknown", "fired × 0"),
    ("faults", text(EMPTY, more=FAULT), [fired(a=0), fired(a=1)], {}, "valid", "fired × 2"),
    ("faults", text(EMPTY, more=FAULT), [fired(a=0)], {}, "invalid", "1 never fired"),
    ("faults", text(EMPTY, more=FAULT), [], {"dropped": 1}, "unknown", "2 never fired"),
    ("steps", text(EMPTY), [*BOTH, ended(0, 1), ended(1, 1), gone(0), gone(1)], {}, "valid", "4 ends"),
    ("steps", text(EMPTY), [*BOTH, ended(0, 1), ended(1, 1, OOM)], {}, "invalid", "p.1: oom"),
    ("steps", text(EMPTY), [*BOTH, ended(0, 1), gone(0), gone(1)], {}, "invalid", "p.1: never ended"),
    ("steps", text(EMPTY), [*BOTH, ended(0, 1), gone(0), gone(1, 9)], {}, "valid", "3 ends"),
    ("steps", text(EMPTY), [*BOTH, ended(0, 1), gone(0), gone(1)], {"dropped": 1}, "unknown", "never ended"),
    ("steps", text(EMPTY, more="options: {history: none}"), [gone(0), gone(1)], {}, "unknown", "never ended"),
    ("engine", text(EMPTY), [engine(a=2)], {}, "invalid", "1 policy faults"),
    ("engine", text(EMPTY), [engine(a=3)], {}, "invalid", "no engine"),
    ("start_up", STARTED, [], burst(2_000_000), "valid", "p50 1 ms, latencies 1 ms, 2 ms"),
    ("start_up", STARTED, [], burst(2_000_001), "invalid", "latencies 1 ms"),
    ("start_up", STARTED, [], burst(2_000_000, 1), "invalid", "gave_up 1"),
    ("start_up", STARTED, [], {}, "unknown", "none in run.json"),
    ("share", SHARED, [], tenant(1.5), "valid", "mae of 0 1.50"),
    ("share", SHARED, [], tenant(1.6), "invalid", "mae of 0 1.60"),
    ("share", SHARED, [], tenant(1.0, 0.9), "invalid", "jain 0.9000"),
    ("share", SHARED, [], {}, "unknown", "none in run.json"),
]


@pytest.mark.parametrize(("check", "scenario", "rows", "lost", "status", "seen"), CASES)
def test_case(lab, check, scenario, rows, lost, status, seen) -> None:
    verdict = lab.verdict(scenario, rows, check, **lost)
    assert verdict.status == status, verdict
    assert seen in verdict.seen
    assert verdict.expected
    assert verdict.subject
    assert verdict.evidence == lost.get("info", {}).get("evidence", "fake-driver")
    assert verdict.where.startswith("f")


def test_every_check_has_a_valid_an_invalid_and_an_unknown_case() -> None:
    from lab.checks.judge import CHECKS

    for check in [*CHECKS, "steps", "exits", "faults"]:
        assert {case[4] for case in CASES if case[0] == check} == {"valid", "invalid", "unknown"}, check


def test_wrong_data_is_invalid_though_every_call_succeeded(lab) -> None:
    steps = "[{alloc: {bytes: 1MiB, as: x}}, {write: x}, {read: x}, {launch: vadd}, {random: 5}]"
    good = [ended(0, 0), ended(0, 1, a=9), ended(0, 2, a=9), ended(0, 3, a=1), ended(0, 4, a=5), gone(0)]
    assert lab.checks(text(EMPTY, steps=steps, count=1), good)["steps"] == "valid"
    for index, bad in [(2, ended(0, 2, b=1)), (3, ended(0, 3, a=0, b=7)), (4, ended(0, 4, b=1))]:
        rows = [*good[:index], bad, *good[index + 1 :]]
        assert lab.checks(text(EMPTY, steps=steps, count=1), rows)["steps"] == "invalid", bad
    unverified = [*good[:3], ended(0, 3, a=2), *good[4:]]
    assert lab.checks(text(EMPTY, steps=steps, count=1), unverified)["steps"] == "valid"


def test_a_crashed_child_is_seen_and_an_asked_for_end_is_not_a_crash(lab) -> None:
    def status(child: str, wait_status: int) -> str:
        steps = f"[{{fork: {{steps: [{child}]}}}}]"
        rows = [ended(0, 0, b=wait_status), ended(0, 1), gone(0)]
        return lab.checks(text(EMPTY, steps=steps, count=1), rows)["steps"]

    assert status("sync", 0) == "valid"
    assert status("sync", 11) == "invalid"
    assert status("{exit: 3}", 3 << 8) == "valid"
    assert status("{exit: 3}", 4 << 8) == "invalid"
    assert status("{signal: SIGTERM}", 15) == "valid"


def test_a_step_may_say_its_own_result(lab) -> None:
    steps = "[{alloc: {bytes: 1MiB, as: x, result: oom}}]"
    assert lab.checks(text(EMPTY, steps=steps, count=1), [ended(0, 0, OOM), gone(0)])["steps"] == "valid"
    assert lab.checks(text(EMPTY, steps=steps, count=1), [ended(0, 0), gone(0)])["steps"] == "invalid"
    any_result = steps.replace("oom", "any")
    assert lab.checks(text(EMPTY, steps=any_result, count=1), [ended(0, 0, 999), gone(0)])["steps"] == "valid"


def test_a_timeout_is_invalid_and_shows_backtraces(lab) -> None:
    info = {"timed_out": True, "processes": [{"index": 1, "label": "p.1", "backtrace": "#0 futex\n#1 main"}]}
    verdict = lab.verdict(text(EMPTY), [], "run", info=info)
    assert verdict.status == "invalid"
    assert verdict.expected == "ends within 60 s"
    assert "    #0 futex" in verdict.details


def test_what_the_machine_forbids_is_unknown_with_its_reason(lab) -> None:
    info = {"unknown": [{"what": "container c: private PID namespace", "why": "user namespaces are off"}]}
    verdict = lab.verdict(text(EMPTY), NOTHING_HELD, "run", info=info)
    assert (verdict.status, verdict.seen) == ("unknown", "user namespaces are off")
    assert lab.verdict(text(EMPTY), [], "run", info={"interrupted": True}).status == "unknown"


def test_an_interrupted_run_is_unknown_not_invalid(lab) -> None:
    killed = [gone(0), {"event": "SIGNAL", "process": 1, "a": 9}, gone(1, 9), ended(0, 0)]
    scenario = text(OUTCOME, more=FAULT)
    assert "invalid" in lab.checks(scenario, killed).values()
    assert set(lab.checks(scenario, killed, info={"interrupted": True}).values()) == {"unknown"}


def test_fault_slots_lead_back_to_their_fault(lab) -> None:
    rows = [fired(a=slot) for slot in (0, 1, 2)]
    info = {"fault_slots": [0, 0, 1]}
    verdict = lab.verdict(text("faults_fired: {fault: 0, count: 2}", more=FAULT), rows, "faults_fired", info=info)
    assert verdict.status == "valid"
    assert lab.verdict(text(EMPTY, more=FAULT), rows[:2], "faults", info=info).status == "invalid"


def test_run_json_gives_ends_when_the_history_has_none(lab) -> None:
    info = {"processes": [{"index": 0, "status": 0}, {"index": 1, "status": 11, "stderr": "stderr/p.1.txt"}]}
    verdict = lab.verdict(text(EMPTY), [], "exits", info=info)
    assert verdict.status == "invalid"
    assert verdict.details == ("p.1: SIGSEGV; stderr in stderr/p.1.txt",)


GIB = 1 << 30
TWO = """\
name: t
containers:
  c:
    processes:
      - {name: p, count: 2, steps: [init, {signal: SIGKILL}], expect_exit: any}
expect:
  - never_above: {memory: 4GiB}
"""


def taken(process: int, size: int, *, own: int, total: int, **more: int) -> dict[str, Any]:
    return phys(process=process, pid=process + 10, a=size * GIB, b=total * GIB, c=own * GIB, **more)


DEATHS = {
    "a planned kill": fired(process=0, pid=10, c=3),
    "a signal to itself": {"event": "STEP_BEGIN", "process": 0, "pid": 10, "step": 1},
    "a signal": {"event": "SIGNAL", "process": 0, "pid": 10, "a": 9},
    "an end": gone(0),
    "closed books": {"event": "LEDGER", "process": 0, "pid": 10, "a": -3 * GIB, "c": 1},
}


@pytest.mark.parametrize("death", DEATHS)
def test_bytes_of_the_dead_are_not_the_fault_of_the_living(lab, death: str) -> None:
    """The driver returns a dead process's bytes a moment later than the ledger does, as on a real GPU."""
    rows = [taken(0, 3, own=3, total=3), DEATHS[death], taken(1, 4, own=4, total=7), phys_end(b=7 * GIB)]
    verdict = lab.verdict(TWO, rows, "never_above")
    assert verdict.status == "valid"
    assert "at most 4GiB (container c); and up to 3GiB of processes already ended" in verdict.seen


def test_a_death_does_not_hide_an_excess_of_the_living(lab) -> None:
    """The planted failures: too much before the death, too much by the survivor alone, and a dead that still takes."""
    death = DEATHS["an end"]
    before = [taken(0, 3, own=3, total=3), taken(1, 2, own=2, total=5), death]
    survivor = [taken(0, 3, own=3, total=3), death, taken(1, 5, own=5, total=8)]
    undead = [taken(0, 3, own=3, total=3), death, taken(1, 3, own=3, total=6), taken(0, 1, own=4, total=7)]
    idle = [taken(0, 3, own=3, total=3), taken(1, 3, own=3, total=6), phys_end(b=6 * GIB)]
    other = [taken(0, 3, own=3, total=3), {**death, "process": 1}, taken(1, 3, own=3, total=6)]
    for rows in (before, survivor, undead, idle, other):
        assert lab.verdict(TWO, rows, "never_above").status == "invalid", rows
