"""No history makes a check raise, and no verdict depends on the order in which records lie in the file."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.checks import RunData, judge, worst
from lab.checks.history import constants, dtype, from_records
from lab.scenario.load import loads

(SCENARIO,) = loads(
    """\
name: t
node: {gpus: [a100-80g, a100-80g]}
containers:
  c:
    limits: {memory: 4MiB}
    processes:
      - {name: p, count: 2, steps: [init, {alloc: {bytes: 1MiB, as: x}}, {view: {as: v}}, {fork: {steps: [sync]}}]}
  d:
    processes:
      - {name: q, steps: [{random: 5}, {launch: vadd}], expect_exit: any}
faults:
  - {at: cuMemAlloc_v2, delay: 1ms}
expect:
  - outcome: {step: x, ok: 1, oom: {max: 3}}
  - values: {step: x, bytes: 5}
  - view: {step: v, total: 4MiB}
  - never_above: {memory: 4MiB}
  - never_above: {memory: 4MiB, of: process, device: 1}
  - never_above: {memory: 4MiB, of: device}
  - ledger_empty
  - exit: {process: p, code: 0}
  - order: {phases: [preinit_enter, real_enter, real_exit], once: true}
  - calls: {name: cuInit, count: 1, container: c}
  - not_executed: {count: 0, process: q}
  - faults_fired: {fault: 0, count: {min: 1}}
options: {history: calls}
""",
    "f",
)

_EVENTS = [value for name, value in constants().items() if name.startswith("HL_EVENT_")]
_SMALL = st.one_of(st.integers(0, 12), st.sampled_from([4 << 20, 5 << 20, 2**64 - 1, 0xFFFF]))


def _record(**overrides: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    fields = {
        "event": st.one_of(st.sampled_from(_EVENTS), st.integers(0, 255)),
        "a": _SMALL,
        "b": _SMALL,
        "c": _SMALL,
        "process": st.sampled_from([0, 1, 2, 3, 0xFFFF]),
        "step": st.sampled_from([0, 1, 2, 3, 4, 0xFFFF]),
        "container": st.sampled_from([0, 1, 2, 0xFFFF]),
        "device": st.sampled_from([0, 1, 2, 0xFF]),
        "result": st.sampled_from([0, 0, 1, 2, -1, 999, -(2**31)]),
        "name": st.sampled_from([0, 1, 500, 0xFFFF]),
        "route": st.integers(0, 255),
        "pid": st.integers(1, 3),
    }
    return st.fixed_dictionaries(fields | overrides)


def _array(rows: list[dict[str, int]]) -> np.ndarray:
    records = np.zeros(len(rows), dtype())
    records["time_ns"] = np.arange(len(rows)) + 1
    for index, row in enumerate(rows):
        for key, value in row.items():
            records[index][key] = np.uint64(value) if key in "abc" else value
    return records


_INFO = st.fixed_dictionaries(
    {},
    optional={
        "processes": st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {"index": st.integers(0, 4), "status": st.one_of(st.none(), st.integers(0, 65535))}
                ),
            ),
            max_size=4,
        ),
        "fault_slots": st.one_of(st.none(), st.lists(st.integers(-2, 3), max_size=3)),
        "unknown": st.one_of(
            st.none(), st.lists(st.dictionaries(st.sampled_from(["what", "why"]), st.text()), max_size=2)
        ),
        "timed_out": st.booleans(),
        "interrupted": st.booleans(),
        "evidence": st.sampled_from(["fake-driver", "real-gpu", "simulated"]),
    },
)


@given(st.lists(_record(), max_size=40), _INFO, st.integers(0, 2), st.integers(0, 2))
def test_no_history_makes_a_check_raise(rows, info, dropped, uncommitted) -> None:
    run = RunData(from_records(_array(rows), dropped=dropped, uncommitted=uncommitted), info)
    verdicts = judge(SCENARIO, run)
    assert len(verdicts) >= len(SCENARIO.expect)
    assert {verdict.status for verdict in verdicts} <= {"valid", "invalid", "unknown"}
    assert all("\n" not in verdict.seen + verdict.expected for verdict in verdicts if verdict.check != "run")


@given(st.lists(_record(), max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_records_in_the_file_does_not_matter(rows, random) -> None:
    records = _array(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = records[order]
    assert judge(SCENARIO, RunData(from_records(records))) == judge(SCENARIO, RunData(from_records(shuffled)))


def test_the_worst_verdict_wins() -> None:
    for statuses in itertools.product(["valid", "invalid", "unknown"], repeat=3):
        wanted = "invalid" if "invalid" in statuses else "unknown" if "unknown" in statuses else "valid"
        assert worst(statuses) == wanted
    assert worst([]) == "unknown"
