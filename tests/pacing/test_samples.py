"""What the limiter makes of NVML's list and samples: whose PIDs they are; nothing is guessed, nothing counted twice."""

from __future__ import annotations

import _ctypes
import ctypes
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FIRST, OTHER = 4026531836, 4026532999  # PID namespaces: the machine's first one, a container's
NOT_SUPPORTED = 3


@dataclass(frozen=True)
class Sample:
    """1/100 percent, ns."""

    usable: int
    known: int
    fresh: int
    own: int
    everybody: int
    window: int
    own_ns: int
    neighbours: int


class Nvml:
    """A world and what the limiter sees of it. `mine`, `host`: the namespaces of the process and of NVML's numbers."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.now_us = time.time_ns() // 1000

    def world(self, *, mine: int, host: str = "", nvml: bool = True) -> None:
        self._library.sample_world(ctypes.c_uint64(mine), host.encode(), int(nvml))

    def slot(self, pid: int, *, host_pid: int = 0, namespace: int) -> None:
        self._library.sample_slot(pid, host_pid, ctypes.c_uint64(namespace))

    def present(self, *pids: int) -> None:
        for pid in pids:
            self._library.sample_present(pid)

    def lives(self, *pids: int) -> None:
        for pid in pids:
            self._library.sample_lives(pid)

    def entry(self, pid: int, after_ms: int, percent: int) -> None:
        self._library.sample_entry(pid, ctypes.c_uint64(self.now_us + after_ms * 1000), percent)

    def fails(self, result: int) -> None:
        self._library.sample_fails(result)

    def take(self) -> Sample:
        values = (ctypes.c_uint64 * 8)()
        self._library.sample_take(values)
        return Sample(*values)


@pytest.fixture(scope="module")
def built(compile_c: Callable[..., Path], root: Path) -> Path:
    parts = [root / "shim/preload/pacing_sample.c", root / "shim/preload/own.c"]
    flags = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--wrap=kill", "-Wl,-z,defs")
    return compile_c(root / "tests/native/pacing/sample.c", *flags, extra=parts, name="sample.so")


@pytest.fixture
def nvml(built: Path, tmp_path: Path) -> Iterator[Nvml]:
    library = ctypes.CDLL(str(shutil.copy(built, tmp_path / "sample.so")))
    yield Nvml(library)
    _ctypes.dlclose(library._handle)


def busy(nvml: Nvml, *pids: int) -> Sample:
    """What is seen when each of `pids` had 30 % of a window of 200 ms."""
    for pid in pids:
        nvml.entry(pid, -200, 0)
        nvml.entry(pid, 0, 30)
    nvml.take()  # learns where the samples are
    for pid in pids:
        nvml.entry(pid, 200, 30)
    return nvml.take()


def test_by_host_pids_that_slots_know(nvml: Nvml) -> None:
    nvml.world(mine=OTHER)
    nvml.slot(7, host_pid=5007, namespace=OTHER)
    nvml.slot(8, host_pid=5008, namespace=OTHER)
    nvml.present(5007, 5008, 7)  # 7 is somebody else outside
    sample = busy(nvml, 5007, 5008, 7)
    assert (sample.usable, sample.known, sample.fresh) == (1, 1, 1)
    assert (sample.own, sample.everybody, sample.neighbours) == (6_000, 9_000, 1)
    assert (sample.window, sample.own_ns) == (200_000_000, 120_000_000)


@pytest.mark.parametrize("host", ["", str(OTHER)], ids=["first", "told"])
def test_by_pids_of_the_namespace_that_nvml_counts_in(nvml: Nvml, host: str) -> None:
    namespace = OTHER if host else FIRST
    nvml.world(mine=namespace, host=host)
    nvml.slot(7, namespace=namespace)
    nvml.present(7, 9)
    nvml.lives(7, 9)
    sample = busy(nvml, 7, 9)
    assert (sample.usable, sample.known, sample.own, sample.everybody) == (1, 1, 3_000, 6_000)
    assert sample.neighbours == 1


def test_by_pids_inside_where_nvml_lists_those(nvml: Nvml) -> None:
    nvml.world(mine=OTHER)
    nvml.slot(7, host_pid=5007, namespace=OTHER)
    nvml.slot(8, namespace=OTHER)
    nvml.present(7, 8)
    nvml.lives(7, 8)
    sample = busy(nvml, 7, 8)
    assert (sample.usable, sample.known, sample.own, sample.neighbours) == (1, 1, 6_000, 0)


def test_numbers_from_outside_are_never_taken_for_ours(nvml: Nvml) -> None:
    """A neighbour outside has the number that our process has inside, and something else of its list lives not here."""
    nvml.world(mine=OTHER)
    nvml.slot(7, namespace=OTHER)
    nvml.present(7, 4242)
    nvml.lives(7)
    sample = busy(nvml, 7, 4242)
    assert (sample.usable, sample.known, sample.own, sample.neighbours) == (0, 0, 0, 2)


def test_one_unknown_process_makes_the_sample_incomplete(nvml: Nvml) -> None:
    nvml.world(mine=OTHER)
    nvml.slot(7, host_pid=5007, namespace=OTHER)
    nvml.slot(8, namespace=OTHER)
    nvml.present(5007, 5008)
    sample = busy(nvml, 5007, 5008)
    assert (sample.usable, sample.known) == (1, 0)
    assert sample.own == 3_000


def test_without_nvml_nothing_is_usable(nvml: Nvml) -> None:
    nvml.world(mine=FIRST, nvml=False)
    nvml.slot(7, namespace=FIRST)
    assert nvml.take() == Sample(0, 0, 0, 0, 0, 0, 0, 0)


def test_samples_that_nvml_refuses_are_not_usable(nvml: Nvml) -> None:
    nvml.world(mine=FIRST)
    nvml.slot(7, namespace=FIRST)
    nvml.present(7)
    nvml.fails(NOT_SUPPORTED)
    sample = nvml.take()
    assert (sample.usable, sample.known, sample.fresh) == (0, 1, 0)


def test_a_sample_counts_once(nvml: Nvml) -> None:
    nvml.world(mine=FIRST)
    nvml.slot(7, namespace=FIRST)
    nvml.present(7)
    assert not nvml.take().fresh  # the first look only learns where the samples are
    nvml.entry(7, 100, 50)
    assert nvml.take().fresh
    assert not nvml.take().fresh
    nvml.entry(7, 300, 20)
    nvml.entry(7, 500, 60)
    nvml.entry(7, 500, 101)  # nonsense
    sample = nvml.take()
    assert (sample.fresh, sample.own, sample.window, sample.own_ns) == (1, 4_000, 400_000_000, 160_000_000)
