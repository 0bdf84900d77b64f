"""Measures what an interposer adds, by processes that live side by side and take turns.

A measuring program prints JSON lines: ``{"once": NAME, "live": 0, "ns": N}`` for what happens once in a process,
``{"figure": NAME, "live": L}`` for what it can time, then ``ready``. For each line with the number of a figure it times
one batch and answers with nanoseconds. A round has three processes: bare, bare again (the control: what it differs from
the first is noise) and interposed. They never run at once; each batch is asked of all three within a moment, in
changing order, so that a drift of the machine falls on all. A process that fails gives no figure at all: it is counted,
its reason kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

SIDES = ("bare", "control", "interposed")
_READY_PATIENCE_S = 240.0
_BATCH_PATIENCE_S = 120.0
_LINE = 65536

Key = tuple[str, int]  # name and live allocations of a figure


@dataclass(frozen=True, slots=True)
class PairRow:
    """One figure: ns on both sides (medians over rounds of each round's median), and what the interposer adds.

    ``added_ns`` and ``control_ns`` are medians over rounds of the medians of differences batch by batch: interposed and
    control against bare. ``failed`` counts processes that gave no figure.
    """

    call: str
    live: int
    bare_ns: float
    interposed_ns: float
    added_ns: float
    control_ns: float
    failed: int

    @property
    def ratio(self) -> float:
        return 1 + self.added_ns / self.bare_ns if self.bare_ns else float("inf")


@dataclass
class _Round:
    times: dict[Key, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))


class MeasureError(Exception):
    """A measuring process that gave no figure; one line."""


class _Program:
    """A measuring process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cpus: frozenset[int]) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
        )
        if cpus:
            with contextlib.suppress(OSError):  # it ended already; reading from it tells
                os.sched_setaffinity(self.process.pid, cpus)
        self.received = b""
        self.figures: list[Key] = []
        self.once: dict[Key, float] = {}

    def until_ready(self) -> None:
        deadline = time.monotonic() + _READY_PATIENCE_S
        while (line := self._line(deadline)) != "ready":
            try:
                told = json.loads(line)
                if "figure" in told:
                    self.figures.append((str(told["figure"]), int(told["live"])))
                else:
                    self.once[str(told["once"]), int(told["live"])] = float(told["ns"])
            except (ValueError, KeyError, TypeError):
                continue  # a line that is not ours, e.g. of the interposer

    def batch(self, number: int) -> float:
        """ns of one call in one batch."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise self._failure() from None
        deadline = time.monotonic() + _BATCH_PATIENCE_S
        while True:
            with contextlib.suppress(ValueError):
                return float(self._line(deadline))

    def _line(self, deadline: float) -> str:
        assert self.process.stdout is not None
        while b"\n" not in self.received:
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise MeasureError("it did not answer in time")
            part = os.read(self.process.stdout.fileno(), _LINE)
            if not part:
                raise self._failure()
            self.received += part
        line, _, self.received = self.received.partition(b"\n")
        return line.decode(errors="replace").strip()

    def _failure(self) -> MeasureError:
        try:
            code = self.process.wait(_BATCH_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return MeasureError("it closed its output and did not end")
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return MeasureError(f"{ending(code)}: {lines[-1] if lines else 'it said nothing'}")

    def close(self) -> None:
        """Let it end; its status is a failure too."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(_BATCH_PATIENCE_S)
            if code:
                raise self._failure()
        except subprocess.TimeoutExpired:
            raise MeasureError("it did not end") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End it, whatever it does, and give the descriptors back."""
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.errors.close()


def ending(code: int) -> str:
    """How a program ended, from subprocess's return code."""
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def measure(
    command: Sequence[str],
    environment: Callable[[str, int], Mapping[str, str]],
    *,
    rounds: Iterable[int],
    batches: int,
    cpus: int,
    together: bool = False,
) -> tuple[tuple[PairRow, ...], tuple[str, ...]]:
    """Rows and failures (one line each). ``environment(side, round)``; ``cpus``: processors that the three share.

    ``together``: start the processes of a round at once (nothing that happens once is then worth measuring).
    """
    found: list[_Round] = []
    failures: list[str] = []
    for number in rounds:
        found.append(_round(command, environment, number, batches, _processors(cpus), failures, together=together))
    keys = list(dict.fromkeys(key for one in found for key in one.times))
    rows = (_row(key, [one.times[key] for one in found if key in one.times], len(found)) for key in keys)
    return tuple(row for row in rows if row is not None), tuple(failures)


def _processors(count: int) -> frozenset[int]:
    """The last of those we may use: the first ones serve the machine's interrupts."""
    return frozenset(sorted(os.sched_getaffinity(0))[-count:])


def _round(
    command: Sequence[str],
    environment: Callable[[str, int], Mapping[str, str]],
    number: int,
    batches: int,
    cpus: frozenset[int],
    failures: list[str],
    *,
    together: bool,
) -> _Round:
    result = _Round()
    running: dict[str, _Program] = {}

    def fail(side: str, error: MeasureError) -> None:
        failures.append(f"{side} run {number + 1}: {error}")
        running.pop(side).kill()
        for times in result.times.values():
            times.pop(side, None)

    try:
        turn = SIDES[number % 3 :] + SIDES[: number % 3]
        for side in turn:
            running[side] = _Program(command, environment(side, number), cpus)
            if not together:
                _get_ready(running, side, fail)
        if together:
            for side in turn:
                _get_ready(running, side, fail)
        figures = max((program.figures for program in running.values()), key=len, default=[])
        for index, key in enumerate(figures):
            for batch in range(batches):
                order = [side for side in (turn if batch % 2 else tuple(reversed(turn))) if side in running]
                for side in order:
                    try:
                        result.times[key][side].append(running[side].batch(index))
                    except MeasureError as error:
                        fail(side, error)
        for side, program in list(running.items()):
            for key, ns in program.once.items():
                result.times[key][side].append(ns)
            try:
                program.close()
            except MeasureError as error:
                fail(side, error)
    finally:
        for program in running.values():
            program.kill()
    return result


def _get_ready(running: dict[str, _Program], side: str, fail: Callable[[str, MeasureError], None]) -> None:
    try:
        running[side].until_ready()
    except MeasureError as error:
        fail(side, error)


def _row(key: Key, rounds: Sequence[Mapping[str, Sequence[float]]], total: int) -> PairRow | None:
    sides: dict[str, list[float]] = {side: [] for side in SIDES}
    differences: dict[str, list[float]] = {"control": [], "interposed": []}
    for times in rounds:
        for side in SIDES:
            if times.get(side):
                sides[side].append(statistics.median(times[side]))
        for side, found in differences.items():
            if times.get(side) and times.get("bare"):
                found.append(statistics.median(a - b for a, b in zip(times[side], times["bare"], strict=False)))
    if not sides["bare"] or not sides["interposed"] or not differences["interposed"]:
        return None
    return PairRow(
        call=key[0],
        live=key[1],
        bare_ns=statistics.median(sides["bare"]),
        interposed_ns=statistics.median(sides["interposed"]),
        added_ns=statistics.median(differences["interposed"]),
        control_ns=statistics.median(differences["control"]) if differences["control"] else float("nan"),
        failed=3 * total - sum(len(found) for found in sides.values()),
    )


def as_json(row: PairRow) -> dict[str, Any]:
    """A row as the documents hooklab.bench/1 and run.json carry it."""
    return {
        "call": row.call,
        "live": row.live,
        "bare_ns": row.bare_ns,
        "interposed_ns": row.interposed_ns,
        "added_ns": row.added_ns,
        "control_ns": row.control_ns if row.control_ns == row.control_ns else None,
        "ratio": row.ratio,
        "failed": row.failed,
    }
