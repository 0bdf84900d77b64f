"""The limiter in C, stepped from Python: one `Process` is one copy of tests/native/pacing/rig.c.

A launch is a conversation: the limiter says that it sleeps, asks the policy, or is done; whoever steps it answers. So
any interleaving of any number of processes can be played, in virtual time, on one thread.
"""

from __future__ import annotations

import _ctypes
import ctypes
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

WENT, PASSED, NAPS, LEASES, OBSERVES = 1, 2, 3, 4, 5
PACES_BLOCKS, PACES_BOUNDED = 16, 32  # HL_ENGINE_PACES_*
ENGINE_FAULT = -(2**63) + 1
LIMITER = ("pacing", "pacing_gate", "pacing_lease", "pacing_measure")


def build(compile_c: Callable[..., Path], root: Path) -> Path:
    """The library that copies are made of."""
    return _compile(compile_c, root, "rig.so", "rig.c", "-shared", "-fPIC", "-fvisibility=hidden", *_VIRTUAL)


def build_server(compile_c: Callable[..., Path], root: Path) -> Path:
    """The program that is stepped over its standard input and asks the engine by itself."""
    served = [root / "tests/native/pacing/rig.c"]
    return _compile(compile_c, root, "rig-served", "served.c", *_VIRTUAL, "-ldl", extra=served)


def build_race(compile_c: Callable[..., Path], root: Path, *flags: str) -> Path:
    """The program whose threads and processes race for tokens."""
    return _compile(compile_c, root, f"race{len(flags)}", "race.c", *flags)


_VIRTUAL = ("-Wl,--wrap=hl_now_ns,--wrap=hl_region_enter", "-Wl,-z,defs")


def _compile(
    compile_c: Callable[..., Path], root: Path, name: str, source: str, *flags: str, extra: Sequence[Path] = ()
) -> Path:
    parts = [*extra, root / "tests/native/pacing/shim.c", *(root / f"shim/preload/{part}.c" for part in LIMITER)]
    parts += [*sorted((root / "shim/region").glob("*.c")), *sorted((root / "shim/common").glob("*.c"))]
    planted = "-Wl,--wrap=hl_share_commit"
    return compile_c(root / "tests/native/pacing" / source, *flags, planted, extra=parts, name=name)


class Talk(ctypes.Structure):
    """What the limiter says when it comes back."""

    _fields_ = (
        ("what", ctypes.c_int64),
        ("ns", ctypes.c_uint64),
        ("cost", ctypes.c_int64),
        ("now", ctypes.c_uint64),
        ("busy", ctypes.c_uint64),
        ("window", ctypes.c_uint64),
        ("words", ctypes.POINTER(ctypes.c_uint64)),
    )

    def shared(self) -> memoryview:
        """The words that the policy gets: the limiter's own memory."""
        address = ctypes.cast(self.words, ctypes.c_void_p).value
        assert address
        return memoryview((ctypes.c_uint64 * 64).from_address(address)).cast("B").cast("Q")


@dataclass(frozen=True)
class State:
    """What a process's limiter knows of its own; times ns."""

    tokens: int
    lease_end: int
    in_flight_ns: int
    in_flight: int
    strangers: int
    faults: int


class Process:
    """A process with a limiter. `library`: its own copy of the rig."""

    def __init__(self, library: Path, region: Path, *, percent: int, policy: object, now: int, robust: bool) -> None:
        self.library = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)  # type: ignore[attr-defined]
        features = PACES_BLOCKS if getattr(policy, "UNIT", "ns") == "blocks" else 0
        features |= PACES_BOUNDED if getattr(policy, "BOUNDED", True) else 0
        problem = self.library.rig_open(
            str(region).encode(), int(robust), percent, ctypes.c_uint32(features), ctypes.c_uint64(now)
        )
        assert not problem, f"the region cannot be opened: {problem}"

    def plant(self) -> None:
        """A fault: its answers count although another process was quicker."""
        self.library.rig_plant()

    def seen(self) -> None:
        """Another process has taken the sample."""
        self.library.rig_seen()

    def clock(self, now: int) -> None:
        self.library.rig_clock(ctypes.c_uint64(now))

    def sample(self, *, usable: bool, fresh: bool, own: int, everybody: int, window: int, neighbours: int) -> None:
        """What the next look at NVML finds; 1/100 percent, ns."""
        self.library.rig_sample(
            int(usable), int(fresh), *(ctypes.c_uint64(value) for value in (own, everybody, window, neighbours))
        )

    def launch(self, key: int, blocks: int, ns: int, *, result: int = 0) -> Talk:
        """Begins a launch that takes `ns` on the GPU, or that the driver refuses with `result`."""
        talk = Talk()
        values = (ctypes.c_uint64(value) for value in (key, blocks, ns))
        self.library.rig_launch(*values, result, ctypes.byref(talk))
        return talk

    def go_on(self, answer: int = 0) -> Talk:
        """Wakes it, or answers what it asked the policy."""
        talk = Talk()
        self.library.rig_go_on(ctypes.c_int64(answer), ctypes.byref(talk))
        return talk

    def state(self) -> State:
        values = (ctypes.c_int64 * 6)()
        self.library.rig_state(values)
        return State(*values)

    def estimate(self, key: int, blocks: int) -> tuple[int, int]:
        """(ns, samples)."""
        values = (ctypes.c_uint64 * 2)()
        self.library.rig_estimate(ctypes.c_uint64(key), ctypes.c_uint64(blocks), values)
        return values[0], values[1]

    def words(self) -> list[int]:
        """The container's words as the next policy call would see them."""
        values = (ctypes.c_uint64 * 64)()
        assert not self.library.rig_words(values)
        return list(values)

    def close(self) -> None:
        """A clean end."""
        self.library.rig_close()

    def kill(self) -> None:
        """The end that nobody is told of."""
        self.library.rig_kill()

    def unload(self) -> None:
        """Dead or alive, it is gone afterwards, and its library may be loaded anew."""
        self.library.rig_kill()
        self.library.rig_forget()
        _ctypes.dlclose(self.library._handle)


class Served:
    """A process of its own, with the real engine in it: tests/native/pacing/served.c."""

    def __init__(self, program: Path, region: Path, engine: Path, *, percent: int, controller: str, now: int) -> None:
        words = [str(program), str(region), str(percent), str(engine), controller, str(now)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._answer()

    def _answer(self) -> list[int]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            raise AssertionError(f"it ended: {self.process.communicate(timeout=30)[1]}")
        return [int(word) for word in line.split()]

    def ask(self, *words: object) -> list[int]:
        """The numbers that it answers."""
        assert self.process.stdin
        print(*words, file=self.process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """Killed, if it still lives."""
        self.process.kill()
        self.process.communicate(timeout=30)
