"""The board of a node: what a row says, and who had what of a time that several shared. C against its model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from lab.sim import board
from lab.spec import load_layout, load_profile

LAYOUT = load_layout("board")
ROW = LAYOUT.dtype("hl_board_row")
MS, US = 1_000_000, 1_000


class Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("whole", ctypes.c_bool))


class Member(ctypes.Structure):
    _fields_ = (
        ("own", ctypes.c_bool),
        ("count", ctypes.c_uint32),
        ("at", ctypes.c_uint32),
        ("until", ctypes.c_uint64),
        ("since", ctypes.c_uint64),
        ("drain", ctypes.c_uint64),
        ("piece", Piece * (board.INTERVALS + 1)),
    )


class Division(ctypes.Structure):
    _fields_ = (("own", ctypes.c_uint64), ("all", ctypes.c_uint64), ("raw", ctypes.c_uint64))


def build(
    compile_c: Callable[..., Path], root: Path, edit: tuple[str, str] = ("", ""), name: str = "board"
) -> ctypes.CDLL:
    """The pure files of the board, with a fault in them when `edit` says so."""
    text = "".join((root / f"shim/preload/pacing_{part}.c").read_text() for part in ("row", "divide"))
    assert not edit[0] or edit[0] in text
    library = compile_c(text.replace(*edit) if edit[0] else text, "-shared", "-fPIC", name=f"{name}.c.so")
    found = ctypes.CDLL(str(library))
    found.hl_board_look.restype = ctypes.c_uint64
    found.hl_board_ran.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool)
    found.hl_board_read.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
    found.hl_board_look.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_uint64,
        ctypes.c_void_p,
    )
    return found


@pytest.fixture(scope="module")
def native(compile_c: Callable[..., Path], root: Path) -> ctypes.CDLL:
    return build(compile_c, root)


@dataclass(frozen=True)
class Work:
    """One interval: ns after the one before it, its length, whether it ran in one piece."""

    gap: int
    length: int
    whole: bool


@dataclass(frozen=True)
class Tenant:
    container: int
    work: Sequence[Work]
    in_flight: int | None  # ns after the last interval at which its first launch was
    estimate: int


TIMES = st.one_of(
    st.integers(0, 90 * US), st.integers(0, 6 * MS), st.sampled_from((0, 60 * US, 2 * MS, 4 * MS, 4 * MS + 440 * US))
)
WORK = st.builds(Work, gap=TIMES, length=TIMES, whole=st.booleans())
TENANT = st.builds(
    Tenant,
    container=st.integers(1, 3),
    work=st.lists(WORK, max_size=150),
    in_flight=st.one_of(st.none(), st.integers(-9 * MS, 3 * MS)),
    estimate=st.integers(0, 40 * MS),
)


def both(native: ctypes.CDLL, tenants: Sequence[Tenant], length: int, late: int) -> tuple[object, object]:
    """(until or 0, cut, own, all, raw) by C and by the model: of a window that ends `late` ns after everything."""
    model = board.Board()
    members = (Member * len(tenants))()
    ends = [0]
    rows = []
    for tenant in tenants:
        row = model.take(tenant.container)
        raw = np.zeros(1, dtype=ROW)
        at = 10_000_000_000
        for work in tenant.work:
            start = at + work.gap
            at = start + work.length
            row.ran(start, at, work.whole)
            native.hl_board_ran(raw.ctypes.data, start, at, work.whole)
        if tenant.in_flight is not None:
            row.since = at + tenant.in_flight
            row.drain = row.since + tenant.estimate
            raw["since"], raw["drain"] = row.since, row.drain
        ends.append(at)
        rows.append(raw)
    now = max(ends) + late
    assume(now > length)
    cut = now - length
    found = model.sample(1, cut, now)
    for tenant, raw, member in zip(tenants, rows, members, strict=True):
        native.hl_board_read(raw.ctypes.data, cut, ctypes.addressof(member))
        member.own = tenant.container == 1
    there, division = ctypes.c_uint64(cut), Division()
    until = native.hl_board_look(members, len(tenants), ctypes.byref(there), now, ctypes.byref(division))
    said = (there.value, *((division.own, division.all, division.raw) if until else ()))
    division_of = found.division
    model_said = (found.cut, *((division_of.own, division_of.all, division_of.raw) if division_of else ()))
    return said, model_said


CASES = {
    "tenants": st.lists(TENANT, min_size=1, max_size=4),
    "length": st.integers(60 * MS, 900 * MS),
    "late": st.integers(0, 600 * MS),
}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_c_and_the_model_agree(native: ctypes.CDLL, tenants: Sequence[Tenant], length: int, late: int) -> None:
    said, model = both(native, tenants, length, late)
    assert said == model


@pytest.mark.parametrize(
    "edit",
    [
        ("at->whole || ", ""),
        ("(last->start & mark) == (whole ? mark : 0)", "true"),
        ("latest_mine ? first + (mine - 1) * rest", "latest_mine ? first + mine * rest"),
        ("+ (unsigned)(at->end == to)", ""),
        ("members[i].since < members[i].until", "false"),
    ],
    ids=["whole", "joined", "joiner", "edge", "since"],
)
def test_a_fault_in_c_is_found(compile_c: Callable[..., Path], root: Path, edit: tuple[str, str]) -> None:
    native = build(compile_c, root, edit, name=f"board-{abs(hash(edit))}")

    @settings(
        max_examples=5000,  # it ends at the first difference; what is drawn depends on the modules that are loaded
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(**CASES)
    def search(tenants: Sequence[Tenant], length: int, late: int) -> None:
        said, model = both(native, tenants, length, late)
        assert said == model

    with pytest.raises(AssertionError):
        search()


def test_work_that_ran_in_one_piece_is_never_divided() -> None:
    """Launches of 0.995 ms, waited for, each second one known by estimate only and so put where it was launched: both
    tenants' rows then overlap, and neither may be charged less than it ran (a card gave 42 % to a target of 30)."""
    ends = []
    for whole in (True, False):
        rows = [board.Row(container) for container in (1, 2)]
        for turn in range(60):
            for number, row in enumerate(rows):
                at = MS + turn * 4_558_000 + number * 1_139_000
                row.ran(at, at + 995_000, whole)
                row.ran(at + 1_015_000, at + 2_010_000, whole)
        members = [board.Member(row.container == 1, list(row.pieces)) for row in rows]
        found = board.divide(members, MS, 200 * MS)
        ends.append(found.own / found.raw)
    assert ends[0] == 1
    assert ends[1] < 0.8


def test_long_work_is_divided_by_turns() -> None:
    members = [board.Member(own, [board.Piece(MS, 101 * MS)]) for own in (True, False)]
    found = board.divide(members, MS, 101 * MS)
    assert found.all == found.raw == 100 * MS
    assert found.own == pytest.approx(100 * MS / 2 * board.SLICE / (board.SLICE + board.SWITCH), rel=0.03)


def test_work_in_one_piece_costs_the_others_two_switches() -> None:
    members = [board.Member(True, [board.Piece(MS, 101 * MS)]), board.Member(False, [board.Piece(9 * MS, 10 * MS)])]
    assert board.divide(members, MS, 101 * MS).own == 99 * MS - 2 * board.SWITCH


def test_the_boards_slices_are_those_of_the_card_that_was_measured() -> None:
    profile = load_profile("h200-141g")
    assert profile.number("sharing.slice_ns") == board.SLICE
    assert profile.number("sharing.switch_ns") == board.SWITCH
    assert profile.constants["sharing.slice_ns"].evidence == "measured"
