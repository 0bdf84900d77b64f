"""What programs do: generators of launches, synchronisations and pauses, scaled to the SMs so that times stay.

A program yields ``(LAUNCH, key, blocks, wave_ns, stream)``, ``(SYNC,)`` or ``(THINK, ns)``; ``key`` stands for function
and grid. It is sent the time. Programs never end.

A wave takes 200 us, so a kernel of 1 ms has five times the blocks of one of 200 us; the kernels of ``changing`` and
``giant`` have one wave whatever they take, which is what controllers that count blocks cannot see.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lab.sim import rng
from lab.sim.gpu import GpuModel

LAUNCH, SYNC, THINK = 0, 1, 2
Action: TypeAlias = tuple[int, ...]
Program: TypeAlias = Generator[Action, int, None]
MS, US, SECOND = 1_000_000, 1_000, 1_000_000_000
WAVE = 200 * US
Maker: TypeAlias = Callable[[GpuModel, int], Program]


class PatternError(ValueError):
    """No such pattern, or a trace that cannot be read; one line."""


@dataclass(frozen=True)
class Pattern:
    """One kind of program. `demand`: percent of the GPU it would use alone and unlimited."""

    name: str
    doc: str
    make: Maker
    demand: int = 100


def _kernel(model: GpuModel, key: int, ns: int, *, waves: int = 0, stream: int = 0) -> Action:
    waves = waves or max(1, ns // WAVE)
    return (LAUNCH, key, waves * model.sms * model.resident, max(1, ns // waves), stream)


def _repeat(actions: Sequence[Action]) -> Program:
    """All of them over and over. A generator, because plain iterators cannot be sent the time."""
    while True:
        for number in range(len(actions)):
            yield actions[number]


def _async(ns: int, streams: int = 1) -> Maker:
    def program(model: GpuModel, _seed: int) -> Program:
        launches = [_kernel(model, 1, ns, stream=stream) for stream in range(streams)]
        yield from _repeat(launches)

    return program


def _sync(ns: int) -> Maker:
    def program(model: GpuModel, _seed: int) -> Program:
        launch = _kernel(model, 1, ns)
        while True:
            yield launch
            yield (SYNC,)

    return program


def _burst(model: GpuModel, seed: int) -> Program:
    launch = _kernel(model, 1, MS)
    draws = rng.stream(seed, "think")
    while True:
        for _ in range(50):
            yield launch
        yield (SYNC,)
        yield (THINK, int(draws.integers(25 * MS, 75 * MS)))


def _modest(model: GpuModel, seed: int) -> Program:
    launch = _kernel(model, 1, MS // 2)
    draws = rng.stream(seed, "think")
    while True:
        for _ in range(3):
            yield launch
        yield (SYNC,)
        yield (THINK, int(draws.integers(7 * MS, 10 * MS)))


def _sizes() -> list[int]:
    low, high = math.log(20 * US), math.log(50 * MS)
    return [round(math.exp(low + (high - low) * step / 15)) for step in range(16)]


def _mixed(model: GpuModel, seed: int) -> Program:
    launches = [_kernel(model, key, ns) for key, ns in enumerate(_sizes())]
    draws = rng.stream(seed, "sizes")
    while True:
        for choice in draws.permutation(len(launches)).tolist():
            yield launches[choice]


def _changing(model: GpuModel, _seed: int) -> Program:
    launches = [_kernel(model, key, ns, waves=1) for key, ns in enumerate((40 * US, 4 * MS))]
    now = 0
    while True:
        now = yield launches[now // (4 * SECOND) % 2]


def _giant(model: GpuModel, _seed: int) -> Program:
    launch = _kernel(model, 1, 2 * SECOND, waves=1)
    while True:
        yield launch
        yield (SYNC,)


PATTERNS: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern("async", "kernels of 200 us, never waited for", _async(200 * US)),
        Pattern("async-short", "kernels of 20 us, never waited for", _async(20 * US)),
        Pattern("streams", "kernels of 200 us on four streams in turn", _async(200 * US, streams=4)),
        Pattern("sync", "a kernel of 1 ms, waited for", _sync(MS)),
        Pattern("sync-long", "a kernel of 20 ms, waited for", _sync(20 * MS)),
        Pattern("burst", "50 kernels of 1 ms, waited for, then 25 to 75 ms of thought", _burst, demand=50),
        Pattern("modest", "wants about 15 % only", _modest, demand=15),
        Pattern("mixed", "16 kernels of 20 us to 50 ms, each once a round, in random order", _mixed),
        Pattern("changing", "every 4 s a kernel a hundred times as long, or as short, with equal grids", _changing),
        Pattern("giant", "one kernel of 2 s after the other", _giant),
    )
}


def pattern(name: str) -> Pattern:
    """A pattern by name, or ``trace:FILE.csv``."""
    if name.startswith("trace:"):
        return trace(Path(name.partition(":")[2]))
    found = PATTERNS.get(name)
    if found is None:
        raise PatternError(f"no pattern {name!r}; known: {', '.join(PATTERNS)}, trace:FILE.csv")
    return found


_COLUMNS = ("kernel", "blocks", "wave_ns", "stream", "gap_ns", "sync")


def trace(path: Path) -> Pattern:
    """A program from a CSV with the columns kernel, blocks, wave_ns, stream, gap_ns, sync; repeated for ever.

    One row a launch: `gap_ns` of host time before it, `sync` 1 to wait for everything after it.
    """
    keys: dict[str, int] = {}
    actions: list[Action] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != _COLUMNS:
                raise PatternError(f"{path}: the columns must be {','.join(_COLUMNS)}")
            for row in reader:
                where = f"{path}:{reader.line_num}"
                try:
                    blocks, wave, stream, gap, sync = (int(row[name]) for name in _COLUMNS[1:])
                except (TypeError, ValueError):
                    raise PatternError(f"{where}: whole numbers are wanted in all columns but the first") from None
                if blocks < 1 or wave < 1 or min(stream, gap) < 0 or sync not in (0, 1):
                    raise PatternError(f"{where}: blocks and wave_ns are at least 1, gap_ns at least 0, sync 0 or 1")
                if gap:
                    actions.append((THINK, gap))
                actions.append((LAUNCH, keys.setdefault(f"{row['kernel']}/{blocks}", len(keys)), blocks, wave, stream))
                if sync:
                    actions.append((SYNC,))
    except OSError as error:
        raise PatternError(f"{path}: cannot read the trace: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PatternError(f"{path}: not UTF-8 text") from None
    if not actions:
        raise PatternError(f"{path}: no launches")

    def program(_model: GpuModel, _seed: int) -> Program:
        yield from _repeat(actions)

    return Pattern(f"trace:{path}", f"{len(keys)} kernels of a trace", program)
