"""What an interposer's dialect cannot have makes unknown what hangs on it, and hides nothing else: each case has rows
that are forgiven, which are wrong without the reason, and the planted fault beside it, which stays wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.scenario.vocabulary import hook_ids

GIB = 1 << 30
OK, OOM, UNKNOWN_ERROR, NOT_SUPPORTED = 0, 2, 999, 3
Rows = list[dict[str, Any]]


def text(expect: str, *, steps: str = "[init, {alloc: {bytes: 1GiB, as: x}}]", more: str = "", end: str = "0") -> str:
    return f"""\
name: t
containers:
  c:
    limits: {{memory: 1GiB, cores: 30}}
    processes:
      - {{name: p, steps: {steps}, expect_exit: {end}}}
expect: [{expect}]
{more}"""


def ended(step: int, result: int = OK, name: str = "cuInit", **values: int) -> dict[str, Any]:
    return {"event": "STEP_END", "step": step, "result": result, "name": hook_ids()[name], **values}


def gone(status: int = 0) -> dict[str, Any]:
    return {"event": "EXIT", "a": status}


def barrier(size: int) -> dict[str, Any]:
    return {"held": [{"barrier": "b", "container": "c", "bytes": size}]}


OVER = text("outcome: {step: x, oom: 1}")
FITS = text("outcome: {step: x, ok: 1}")
PLAIN = text("ledger_empty: {at: end}")
UNSAID = text("ledger_empty: {at: end}", steps="[init, {alloc: {bytes: 2GiB, result: oom}}, sync]")
VIEW = text("view: {step: v, total: 1GiB}", steps="[{view: {as: v, api: nvml}}]")
QUERY = "{call: {name: cuMemGetInfo_v2, with: [{out: free}, {out: total}], as: v}}"
VALUES = text("values: {step: v, total: 1GiB}", steps=f"[{QUERY}]")
MIXED = text("values: {step: r, wrong: 0, refused: {min: 1}}", steps="[{random: {operations: 10, as: r}}]")
LAUNCH = text(
    "values: {step: l, wrong: 0, ns: {min: 1000, max: 9000}}", steps="[{launch: {kernel: vadd, n: 8, as: l}}]"
)
PLANNED = text(
    "view: {step: v, total: 1GiB}",
    steps="[{view: {as: v, api: nvml}}]",
    more="faults: [{at: nvmlDeviceGetMemoryInfo, return: NVML_ERROR_NOT_SUPPORTED}]",
)
FIRED = {"event": "FAULT", "a": 0}
ABOVE = text("never_above: {memory: 1GiB}")
HELD = text("held: {barrier: b, memory: {min: 1GiB, max: 2GiB}}", steps="[{barrier: b}]")
EMPTY = text("ledger_empty: {at: end}")
POINT = "faults: [{at: point.exit, process: p, kill: SIGKILL}]"
TWO_FAULTS = "faults: [{at: point.exit, process: p, kill: SIGKILL}, {at: cuMemFree_v2, delay: 1ms}]"
EXIT = text("exit: {process: p, signal: SIGKILL}", more=POINT)
EXITS = text("ledger_empty: {at: end}", more=POINT, end="SIGKILL")
CALLS = text("calls: {name: cuMemAlloc_v2, count: 1}", more="options: {history: calls}")
TIER = text("identity: {tier: broker}")
ASKED = {"event": "IDENTITY", "a": 4, "b": 1, "extra": 1}
SPAWN = {"event": "SPAWN", "a": 77}

# what, check, scenario, forgiven (rows, more of run.json), wrong all the same
CASES: list[tuple[str, str, str, tuple[Rows, dict[str, Any]], tuple[Rows, dict[str, Any]]]] = [
    ("memory", "outcome", OVER, ([ended(1, OK)], {}), ([ended(1, UNKNOWN_ERROR)], {})),
    ("memory", "outcome", OVER, ([ended(1, OK)], {}), ([], {})),
    ("memory", "steps", UNSAID, ([ended(0), ended(1), ended(2)], {}), ([ended(0), ended(1), ended(2, OOM)], {})),
    ("memory", "steps", UNSAID, ([ended(0), ended(1), ended(2)], {}), ([ended(0), ended(1, UNKNOWN_ERROR)], {})),
    ("memory", "steps", UNSAID, ([ended(0), ended(1), ended(2)], {}), ([ended(0), ended(1), gone()], {})),
    ("memory", "view", VIEW, ([ended(0, a=80 * GIB)], {}), ([ended(0, 999, "nvmlDeviceGetMemoryInfo")], {})),
    ("memory", "view", VIEW, ([ended(0, a=80 * GIB)], {}), ([], {})),
    ("memory", "values", VALUES, ([ended(0, b=80 * GIB)], {}), ([ended(0, 201, "cuMemGetInfo_v2")], {})),
    ("memory", "values", MIXED, ([ended(0, a=10)], {}), ([ended(0, a=10, b=1)], {})),
    (
        "memory",
        "view",
        PLANNED,
        ([FIRED, ended(0, NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo")], {}),
        ([FIRED, ended(0, 999, "nvmlDeviceGetMemoryInfo")], {}),
    ),
    (
        "memory",
        "steps",
        PLANNED,
        ([FIRED, ended(0, NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo")], {}),
        ([FIRED, ended(0, 999, "nvmlDeviceGetMemoryInfo")], {}),
    ),
    ("memory", "held", HELD, ([], barrier(3 * GIB)), ([], barrier(GIB // 2))),
    ("resident", "held", HELD, ([], barrier(GIB // 2)), ([], barrier(3 * GIB))),
    ("cores", "values", LAUNCH, ([ended(0, a=1, c=5)], {}), ([ended(0, a=1, c=10_000)], {})),
    ("cores", "values", LAUNCH, ([ended(0, a=1, c=5)], {}), ([ended(0, b=1, c=5000)], {})),
    (
        "ledger",
        "ledger_empty",
        EMPTY,
        ([{"event": "LEDGER_END", "a": 1}, {"event": "PHYS_END"}], {}),
        ([{"event": "LEDGER_END"}, {"event": "PHYS_END", "a": 1}], {}),
    ),
    ("points", "exit", EXIT, ([gone(0)], {}), ([gone(11)], {})),
    ("points", "exits", EXITS, ([gone(0)], {}), ([gone(1 << 8)], {})),
    (
        "points",
        "faults",
        text("ledger_empty: {at: end}", more=TWO_FAULTS),
        ([{"event": "FAULT", "a": 1}], {}),
        ([], {}),
    ),
    (
        "points",
        "faults_fired",
        text("faults_fired: {count: 2}", more=TWO_FAULTS),
        ([{"event": "FAULT", "a": 1}], {}),
        ([{"event": "FAULT", "a": 1}] * 3, {}),
    ),
    ("settings", "outcome", FITS, ([ended(1, OOM)], {}), ([ended(1, UNKNOWN_ERROR)], {})),
    ("settings", "steps", PLAIN, ([ended(0), ended(1, OOM)], {}), ([ended(0), ended(1, UNKNOWN_ERROR)], {})),
    ("reports", "identity", TIER, ([SPAWN], {}), ([SPAWN, ASKED], {})),
]


def _run(lab: Any, what: str, scenario: str, given: tuple[Rows, dict[str, Any]], check: str) -> Any:
    rows, more = given
    info = {**more, "blind": [{"container": "c", "what": what, "why": "it has none"}]}
    return lab.verdict(scenario, rows, check, info=info)


@pytest.mark.parametrize(("what", "check", "scenario", "forgiven", "wrong"), CASES)
def test_only_what_hangs_on_it_is_unknown(lab, what, check, scenario, forgiven, wrong) -> None:
    found = _run(lab, what, scenario, forgiven, check)
    assert found.status == "unknown"
    assert "not judged: it has none" in found.seen
    assert _run(lab, "nothing of the kind", scenario, forgiven, check).status == "invalid"
    assert _run(lab, what, scenario, wrong, check).status == "invalid"


def test_right_by_accident_is_not_right(lab) -> None:
    """A bound that nobody keeps is not kept, however little was asked for."""
    for check, scenario, rows in (
        ("outcome", OVER, [ended(1, OOM)]),
        ("view", VIEW, [ended(0, a=GIB)]),
        ("never_above", ABOVE, [{"event": "PHYS_END", "a": 0, "b": 1}]),
    ):
        assert _run(lab, "memory", scenario, (rows, {}), check).status == "unknown", check


def test_a_refusal_that_no_limit_explains_is_wrong(lab) -> None:
    assert _run(lab, "memory", FITS, ([ended(1, OOM)], {}), "outcome").status == "invalid"
    assert _run(lab, "settings", FITS, ([ended(1, OK)], {}), "outcome").status == "valid"


def test_of_another_container_nothing_is_forgiven(lab) -> None:
    info = {"blind": [{"container": "another", "what": "memory", "why": "it has none"}]}
    assert lab.verdict(OVER, [ended(1, OK)], "outcome", info=info).status == "invalid"


def test_calls_by_another_name_cannot_be_counted(lab) -> None:
    entry = {"container": "c", "what": "calls", "why": "calls another", "names": ["cuMemAlloc_v2"]}
    assert lab.verdict(CALLS, [], "calls", info={"blind": [entry]}).status == "unknown"
    entry["names"] = ["cuMemFree_v2"]
    assert lab.verdict(CALLS, [], "calls", info={"blind": [entry]}).status == "invalid"


COUNT = "{call: {name: nvmlDeviceGetCount_v2, with: [{out: count}], as: s}}"
BEYOND = (
    "{call: {name: nvmlDeviceGetHandleByIndex_v2, with: [7, {out: d}], as: s, result: NVML_ERROR_INVALID_ARGUMENT}}"
)


@pytest.mark.parametrize(
    ("check", "scenario"),
    [
        ("values", text("values: {step: s, count: 1}", steps=f"[{COUNT}]")),
        ("outcome", text("outcome: {step: s, NVML_ERROR_INVALID_ARGUMENT: 1}", steps=f"[{BEYOND}]")),
        ("steps", text("ledger_empty: {at: end}", steps=f"[{BEYOND}]")),
    ],
)
def test_what_is_no_matter_of_memory_is_judged(lab, check: str, scenario: str) -> None:
    """Numbers of devices and processes are no figures of memory, and NVML's 2 is an argument, not a lack of memory."""
    assert _run(lab, "memory", scenario, ([ended(0, OK, "nvmlDeviceGetCount_v2", a=3)], {}), check).status == "invalid"
