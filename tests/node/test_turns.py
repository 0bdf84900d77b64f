"""The schedule of a fake GPU against the simulator's, in virtual time: same work and constants, same ends to the ns."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import native as natives
from lab.node.layout import Capacity, NodeFile, constants, create_node_file
from lab.sim.gpu import Gpu, GpuModel, Kernel

SLICE, SWITCH, IDLE_SWITCH, SMS = 100, 11, 7, 8
FAR = 1 << 40


class _Work(ctypes.Structure):
    _fields_ = (("ns", ctypes.c_uint64), ("after", ctypes.c_uint64), ("sms", ctypes.c_uint32))


@dataclass(frozen=True)
class Launch:
    at: int
    process: int
    ns: int
    sms: int = SMS
    stream: int = 0


class Turns:
    """The C schedule of one device of a file of its own."""

    def __init__(self, file: NodeFile) -> None:
        self.file = file
        library = ctypes.CDLL(str(natives.path("libhooklab-region.so")))
        w32, w64, out = ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)
        base = ctypes.c_void_p
        self._submit, self._mark, self._past = library.hl_turns_submit, library.hl_turns_mark, library.hl_turns_past
        self._when, self._look, self._leave = library.hl_turns_when, library.hl_turns_look, library.hl_turns_leave
        self._submit.restype = self._mark.restype = self._when.restype = w64
        self._submit.argtypes = [base, w32, w32, ctypes.POINTER(_Work), w64, out]
        self._mark.argtypes = [base, w32, w32, w64, w64]
        self._past.argtypes = [base, w32, w64, w64, out, out]
        self._when.argtypes = [base, w32, w64, w64]
        self._look.argtypes = [base, w32, w32, w64]
        self._leave.argtypes = [base, w32, w32, w64]

    def submit(self, slot: int, ns: int, now: int, *, after: int = 0, sms: int = SMS) -> int:
        return int(self._submit(self.file.base, slot, 0, _Work(ns, after, sms), now, None))

    def mark(self, slot: int, now: int, *, end: int = 0) -> int:
        return int(self._mark(self.file.base, slot, 0, end, now))

    def past(self, moment: int, now: int) -> bool:
        return bool(self._past(self.file.base, 0, moment, now, None, None))

    def foreseen(self, moment: int, now: int) -> int:
        found = ctypes.c_uint64(now)
        self._past(self.file.base, 0, moment, now, found, None)
        return found.value

    def when(self, moment: int, now: int = FAR) -> int:
        assert self.past(moment, now)
        return int(self._when(self.file.base, 0, moment, now))

    def look(self, now: int) -> int:
        return int(self._look(self.file.base, constants()["HL_ACCOUNT_SERVER"], 0, now))

    def leave(self, slot: int, now: int) -> int:
        return int(self._leave(self.file.base, slot, 1, now))

    def busy(self, slot: int) -> int:
        ring = self.file.intervals[0][: int(self.file.devices[0]["interval_head"])]
        own = ring[ring["slot"] == slot]
        return int((own["end_ns"] - own["start_ns"]).sum())


@contextmanager
def turns(*, slice_ns: int = SLICE, sharing: str = "HL_SHARING_SLICES") -> Iterator[Turns]:
    with tempfile.TemporaryDirectory() as folder:
        capacity = Capacity(devices=1, processes=70, containers=1, faults=1, intervals=1024)
        file = create_node_file(Path(folder) / "node", capacity=capacity, name_count=1, names_hash=1)
        file.header["time_scale_ppm"] = 1_000_000
        device = file.devices[0]
        device["slice_ns"], device["switch_ns"], device["idle_switch_ns"] = slice_ns, SWITCH, IDLE_SWITCH
        device["sm_count"] = SMS
        device["sharing"] = constants()[sharing]
        yield Turns(file)
        file.close()


def simulated(launches: Sequence[Launch], *, sharing: str = "slices") -> tuple[list[int], list[int]]:
    """Ends of the launches in their order, and busy time by process."""
    model = GpuModel(
        sms=SMS,
        resident=1,
        slice_ns=SLICE,
        switch_ns=SWITCH,
        idle_switch_ns=IDLE_SWITCH,
        kernel_ns=0,
        sharing=sharing,
    )
    processes = 1 + max(one.process for one in launches)
    gpu = Gpu(model, processes)
    kernels = []
    for one in launches:
        while 0 <= gpu.due <= one.at:
            gpu.handle(gpu.due)
        kernels.append(Kernel(one.process, one.stream, 0, one.sms, one.ns, model))
        gpu.submit(kernels[-1], one.at)
    while gpu.due >= 0:
        gpu.handle(gpu.due)
    return [one.ended for one in kernels], [gpu.busy(process, FAR) for process in range(processes)]


def played(fake: Turns, launches: Sequence[Launch], *, spread: int = 1) -> tuple[list[int], list[int]]:
    """The same of the fake; process n lives in slot n * spread."""
    moments = []
    for one in launches:
        moments.append(fake.submit(one.process * spread, one.ns, one.at, sms=one.sms))
    ends = [fake.when(moment) for moment in moments]
    fake.look(FAR)
    processes = 1 + max(one.process for one in launches)
    return ends, [fake.busy(process * spread) for process in range(processes)]


def launches(*, most: int) -> st.SearchStrategy[list[Launch]]:
    each = st.tuples(
        st.integers(0, 250),  # since the one before
        st.integers(0, 3),
        st.integers(1, 350) | st.sampled_from([100, 200, 50]),
        st.integers(1, SMS),
    )

    def place(found: list[tuple[int, int, int, int]]) -> list[Launch]:
        at, placed = 1_000, []
        for gap, process, ns, sms in found:
            at += gap
            placed.append(Launch(at, process, ns, sms))
        return placed

    return st.lists(each, min_size=1, max_size=most).map(place)


@settings(max_examples=150, deadline=None)
@given(launches(most=14), st.sampled_from([1, 23]))
def test_slices_are_the_simulators(found: list[Launch], spread: int) -> None:
    whole = [Launch(one.at, one.process, one.ns) for one in found]
    with turns() as fake:
        assert played(fake, whole, spread=spread) == simulated(whole)


@settings(max_examples=60, deadline=None)
@given(launches(most=14))
def test_sharing_side_by_side_is_the_simulators(found: list[Launch]) -> None:
    apart = [Launch(one.at, one.process, one.ns, one.sms, stream) for stream, one in enumerate(found)]
    with turns(sharing="HL_SHARING_CONCURRENT") as fake:
        assert played(fake, apart) == simulated(apart, sharing="concurrent")


@settings(max_examples=60, deadline=None)
@given(launches(most=8), st.integers(0, 400))
def test_what_is_foreseen_comes_true(found: list[Launch], later: int) -> None:
    with turns() as fake:
        moments = [fake.submit(one.process, one.ns, one.at) for one in found]
        now = found[-1].at + later
        foreseen = [fake.foreseen(moment, now) for moment in moments]
        assert [fake.when(moment) for moment, at in zip(moments, foreseen, strict=True) if at > now] == [
            at for at in foreseen if at > now
        ]


ROUND = [Launch(1_000, 0, 1_000), Launch(1_030, 1, 1_000), Launch(1_500, 2, 50)]


@pytest.mark.parametrize("fault", ["slices ignored", "a dead process keeps its turns"])
def test_planted_faults_are_caught(fault: str) -> None:
    with turns(slice_ns=FAR if fault == "slices ignored" else SLICE) as fake:
        if fault == "slices ignored":
            assert played(fake, ROUND) != simulated(ROUND)
            return
        alone = simulated([ROUND[0]])[0]
        moments = [fake.submit(one.process, one.ns, one.at) for one in ROUND[:2]]
        assert [fake.when(moments[0])] != alone  # nobody told the schedule of the death: it still takes turns


def test_one_that_is_killed_gives_its_share_back() -> None:
    with turns() as fake:
        first, second = fake.submit(0, 1_000, 1_000), fake.submit(1, 1_000_000, 1_000)
        assert fake.leave(1, 1_150) == 0  # 0 ran 1000-1100, 1 came on at 1111
        assert fake.busy(1) == 39
        assert fake.when(first) == 1_150 + IDLE_SWITCH + 900
        assert fake.past(second, FAR)  # whoever waits for it (an event between processes) waits no longer
        assert fake.leave(1, 1_200) == 0  # and again: nothing
        again = fake.submit(1, 10, 3_000)  # the next one in the slot begins anew
        assert fake.when(again) == 3_000 + IDLE_SWITCH + 10


def test_one_that_is_killed_while_it_comes_on() -> None:
    with turns() as fake:
        first = fake.submit(0, 1_000, 1_000)
        fake.submit(1, 1_000, 1_000)
        assert fake.leave(1, 1_105) == 0  # the switch to it had begun at 1100
        assert fake.busy(1) == 0
        assert fake.when(first) == 1_105 + 900


def test_a_lock_of_the_dead_is_opened() -> None:
    with turns() as fake:
        moment = fake.submit(0, 1_000, 1_000)
        fake.file.turns[0]["lock"] = 1 + 1
        assert fake.look(1_100) == -1
        assert fake.leave(0, 1_100) == -1  # somebody else's: not waited for
        assert fake.leave(1, 1_100) == 0
        assert fake.look(1_100) == 1
        assert fake.when(moment) == 2_000


def test_work_does_not_start_before_what_it_waits_for() -> None:
    with turns() as fake:
        first = fake.submit(0, 50, 1_000)
        second = fake.submit(0, 20, 1_000, after=1_400)
        third = fake.submit(0, 30, 1_010)  # behind it, in the order of the launches
        other = fake.submit(1, 500, 1_100)
        assert [fake.when(moment) for moment in (first, second, third, other)] == [
            1_050,
            1_400
            + IDLE_SWITCH
            + SWITCH
            + 20,  # the other came on at 1100, after a switch; this is its third slice's end
            1_400 + IDLE_SWITCH + SWITCH + 50,
            1_400 + IDLE_SWITCH + SWITCH + 50 + IDLE_SWITCH + 200,
        ]


def test_a_stamp_waits_for_its_turn() -> None:
    with turns() as fake:
        assert fake.mark(1, 900) == 900  # nobody was ever on
        busy = fake.submit(0, 1_000, 1_000)
        assert fake.mark(0, 1_010) == 1_010  # its own turn
        assert fake.mark(0, 1_010, end=busy) == busy
        stamp = fake.mark(1, 1_020)
        assert not fake.past(stamp, 1_110)
        assert fake.when(stamp, 1_112) == 1_100 + SWITCH + 1
        assert fake.when(busy) == 2_000 + SWITCH + 1 + IDLE_SWITCH
        assert fake.mark(0, 9_000) == 9_000  # it was the last one on
        assert fake.when(fake.mark(1, 9_000)) == 9_000 + IDLE_SWITCH + 1


def test_alone_pays_no_switch() -> None:
    with turns() as fake:
        moments = [fake.submit(0, 70, at) for at in range(1_000, 100_000, 1_000)]
        assert [fake.when(moment) for moment in moments] == list(range(1_070, 100_070, 1_000))


def test_work_without_an_end_leaves_room_for_the_next_process() -> None:
    with turns() as fake:
        endless = fake.submit(0, 1 << 62, 1_000)
        assert not fake.past(endless, FAR)
        assert fake.leave(0, FAR) == 0
        assert fake.when(fake.submit(0, 5, FAR + 10), FAR + 100) == FAR + 15


@pytest.fixture(scope="session")
def turnsteps(compile_c: Callable[..., Path], native: Path) -> Path:
    """A program that kills whoever plays a schedule after each of its instructions."""
    source = Path(__file__).with_name("turnsteps.c")
    return compile_c(source, f"-Wl,-rpath,{native}", "-Wl,-z,now", extra=[native / "libhooklab-region.so"])


def test_killed_after_every_instruction(turnsteps: Path) -> None:
    done = subprocess.run([turnsteps], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    places, inside = map(int, done.stdout.split())
    assert places > 100
    assert inside > 20, "some of them must lie under the lock"


def test_turnsteps_sees_a_half_written_turn(turnsteps: Path) -> None:
    done = subprocess.run([turnsteps, "plant"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "should be" in done.stdout
