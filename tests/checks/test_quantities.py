"""The four quantities: what a gap is made of is named from kinds and profile; peaks come from the records."""

from __future__ import annotations

import numpy as np
import pytest

from lab.checks import RunData
from lab.checks.history import constants, dtype, event, from_records
from lab.checks.quantities import Card, explain, from_rows, peaks
from lab.scenario.load import loads

MIB = 1 << 20
CARD = Card(context_bytes=512 * MIB, printing_bytes=64 * MIB, allocating_bytes=76 * MIB)
TEXT = """\
name: x
containers:
  tenant: {limits: {memory: 4GiB}, processes: [{name: p, count: 2, steps: [init]}]}
"""


@pytest.mark.parametrize(
    ("held", "booked", "words"),
    [
        ({"context": 512 * MIB}, {}, ["context: 512.0 MiB held and not booked", "1 of 512.0 MiB each"]),
        ({"other": 64 * MIB}, {}, ["printf buffer"]),
        ({"other": 76 * MIB}, {}, ["device functions"]),
        ({"other": 86 * MIB}, {}, ["device functions", "device heap, at the first launch"]),
        ({"other": 150 * MIB}, {}, ["printf buffer", "device functions", "device heap"]),
        ({"other": 258 * MIB}, {"other": 254 * MIB}, ["local memory of a kernel's first launch"]),
        ({"module": 6 * MIB}, {}, ["code and variables of loaded modules"]),
        ({"async": 32 * MIB}, {"async": MIB}, ["async: 31.0 MiB held and not booked", "pool idle"]),
        ({"sync": 2 * MIB}, {"sync": 512}, ["a block of 2 MiB counted by the byte"]),
        ({}, {"managed": 8 * MIB}, ["8.0 MiB booked and not held", "held when it is touched"]),
        ({}, {"pending": 8 * MIB}, ["the driver call is under way"]),
        ({"vmm": 2 * MIB}, {}, ["as an import has it"]),
    ],
)
def test_a_gap_has_its_cause(held: dict[str, int], booked: dict[str, int], words: list[str]) -> None:
    (text,) = explain(held, booked, CARD)
    assert [word for word in words if word not in text] == []


def test_no_gap_needs_no_words() -> None:
    assert list(explain({"sync": 6 * MIB}, {"sync": 4 * MIB, "pitched": 2 * MIB}, CARD)) == []
    assert list(explain({"sync": 6 * MIB, "async": 32 * MIB}, 38 * MIB, CARD)) == []


def test_a_ledger_without_kinds_is_explained_by_the_kinds_that_make_up_its_gap() -> None:
    held = {"context": 512 * MIB, "async": 32 * MIB, "sync": 10 * MIB}
    assert [text.split(":")[0] for text in explain(held, 10 * MIB, CARD)] == ["async", "context"]
    (unclear,) = explain(held, 11 * MIB, CARD)
    assert "no kind alone explains it" in unclear
    assert "context 512.0 MiB" in unclear
    assert "booked and not held" in next(iter(explain(held, 900 * MIB, CARD)))


def test_what_is_not_known_has_no_gap() -> None:
    row = {"at": "now", "container": "c", "process": "p", "device": 0, "host_pid": 7, "limit": 0}
    (real,) = from_rows([row | {"physical": None, "ledger": {"sync": 5}, "observed": 9}], [])
    assert (real.physical, real.ledger, real.observed, real.gap, real.gaps) == (None, 5, 9, None, ())
    (bare,) = from_rows([row | {"physical": {"sync": 5}, "ledger": None, "observed": 5}], [])
    assert (bare.ledger, bare.gap, bare.gaps) == (None, None, ())


def recorded(rows: list[tuple[str, int, int, int, str, int]]) -> RunData:
    """(event, time, process, delta, kind, used by the container after)."""
    records = np.zeros(len(rows), dtype())
    for index, (name, time, process, delta, kind, used) in enumerate(rows):
        values = {"event": event(name), "time_ns": time, "process": process, "pid": 100 + process, "commit": 1}
        values |= {"a": delta % 2**64, "b": used, "extra": constants()[f"HL_KIND_{kind.upper()}"]}
        for key, value in values.items():
            records[index][key] = value
    card = {"context_bytes": 512 * MIB, "context_extra": -MIB}
    return RunData(from_records(records), {"cards": [card]})


def test_a_peak_is_taken_when_the_calls_under_way_have_settled() -> None:
    """The books may follow the driver (double-check); they are read before the sum falls again."""
    (scenario,) = loads(TEXT, "x.yaml")
    run = recorded(
        [
            ("PHYS", 1, 0, 512 * MIB, "context", 512 * MIB),
            ("LEDGER", 2, 0, 512 * MIB, "context", 512 * MIB),
            ("PHYS", 3, 1, 64 * MIB, "other", 576 * MIB),
            ("PHYS", 4, 0, 10 * MIB, "sync", 586 * MIB),
            ("LEDGER", 5, 0, 10 * MIB, "sync", 522 * MIB),
            ("PHYS", 6, 0, -10 * MIB, "sync", 576 * MIB),
            ("LEDGER", 7, 0, -10 * MIB, "sync", 512 * MIB),
        ]
    )
    first, second = peaks(scenario, run)
    assert (first.process, first.physical, first.ledger, first.gaps) == ("p.0", 522 * MIB, 522 * MIB, ())
    assert (first.limit, first.observed, first.at) == (4 << 30, 521 * MIB, "peak")
    assert (second.process, second.physical, second.ledger) == ("p.1", 64 * MIB, 0)
    assert "other: 64.0 MiB held and not booked" in second.gaps[0]


def test_without_records_of_an_interposer_its_ledger_is_unknown() -> None:
    (scenario,) = loads(TEXT, "x.yaml")
    (row,) = peaks(scenario, recorded([("PHYS", 1, 0, 2 * MIB, "sync", 2 * MIB)]))
    assert (row.ledger, row.gap, row.gaps) == (None, None, ())


def test_programs_with_device_numbers_of_their_own_are_left_out() -> None:
    text = TEXT.replace("limits:", 'environment: {CUDA_VISIBLE_DEVICES: "1"}, limits:')
    (scenario,) = loads(text, "x.yaml")
    assert peaks(scenario, recorded([("PHYS", 1, 0, 2 * MIB, "sync", 2 * MIB)])) == ()
