"""A stand-in for the monitor beside a container: what it reads of a region of layout hami-1.2 and writes there.

A monitor maps the file of each container from outside, by its own idea of the struct's length. Once a round it lowers
`recent_kernel`, which launches raise to 2: above 0 means that there was a launch lately. While a container of a higher
priority (a lower number) had launches, it holds the launches of the others back by -1, and gives them free by 0. It
switches pacing (`utilization_switch`) off where nobody competes. It takes no lock, and no launch waits for it to live:
a container that was blocked when it died stays blocked until the next one releases it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from lab.region._file import RegionError
from lab.spec import load_layout

LAYOUT = "hami-1.2"
BLOCKED = -1
_LOOK_S = 0.002


class HamiMonitor:
    """One container's region, mapped to be written. RegionError (one line) when it is none of that layout."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        layout = load_layout(LAYOUT)
        dtype = layout.dtype("hl_hami_region")
        self.path = Path(path)
        try:
            with self.path.open("r+b") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < dtype.itemsize:
                    raise RegionError(
                        f"{path}: too short for a region of layout {LAYOUT} ({size} bytes); give another path"
                    )
                self._memory = mmap.mmap(stream.fileno(), dtype.itemsize)
        except OSError as error:
            raise RegionError(
                f"{path}: the region cannot be opened: {error.strerror}; give the path of a region file"
            ) from None
        self.record: Any = np.frombuffer(self._memory, dtype, 1)
        """One element: hl_hami_region, live."""
        if int(self.record["magic"][0]) != layout.constants["HL_HAMI_MAGIC"]:
            self.close()
            raise RegionError(f"{path}: not a region of layout {LAYOUT}; give another path")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap; nothing is restored, as when a monitor is killed."""
        self.record = None
        self._memory.close()

    def get(self, field: str) -> int:
        """A number of the region's own, e.g. ``recent_kernel``. RegionError when there is none of this name."""
        return int(self.record[self._known(field)][0])

    def set(self, field: str, value: int) -> None:
        """Write one. RegionError when there is none of this name or the value does not fit."""
        kind = self.record.dtype[self._known(field)]
        bounds = np.iinfo(kind)
        if not bounds.min <= value <= bounds.max:
            raise RegionError(f"{self.path}: {field} {value} does not fit: {bounds.min} to {bounds.max}")
        self.record[field][0] = value

    def _known(self, field: str) -> str:
        kinds = self.record.dtype
        known = [name for name in kinds.names if kinds[name].subdtype is None and kinds[name].kind in "iu"]
        if field not in known:
            raise RegionError(f"{self.path}: a region has no number {field!r}; there are {', '.join(known)}")
        return field

    @property
    def live(self) -> int:
        """How many slots count."""
        return self.get("proc_count")

    @property
    def blocked(self) -> bool:
        """Whether launches are held back."""
        return self.get("recent_kernel") < 0

    def block(self) -> None:
        """Hold launches back."""
        self.set("recent_kernel", BLOCKED)

    def release(self) -> None:
        """Let them go, if they are held back."""
        if self.blocked:
            self.set("recent_kernel", 0)


def one_round(monitors: Sequence[HamiMonitor]) -> None:
    """What a monitor does once in a while with all containers of a GPU."""
    recent = {}
    for monitor in monitors:
        value = monitor.get("recent_kernel")
        if value > 0:
            value -= 1
            monitor.set("recent_kernel", value)
        recent[monitor.path] = value > 0
    for monitor in monitors:
        mine = monitor.get("priority")
        others = [other for other in monitors if other is not monitor and recent[other.path]]
        if any(other.get("priority") < mine for other in others):
            monitor.block()
        else:
            monitor.release()
        monitor.set("utilization_switch", int(any(other.get("priority") <= mine for other in others)))


ACTIONS = (
    "block, release, FIELD=NUMBER, live=N (wait for so many slots), kernel (wait for a launch), wait=DURATION, "
    "rounds=N/DURATION (of the monitor's work), restart (map the files anew), size=BYTES (of the file)"
)


def play(paths: Iterable[str | os.PathLike[str]], actions: Sequence[str], *, timeout_s: float = 60.0) -> None:
    """Do ``actions`` (see :data:`ACTIONS`) one after another on every file; waits for files that are not there yet.

    RegionError (one line) for an action that is none, or when something waited for does not come in ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    files = [Path(path) for path in paths]
    _until(lambda: all(map(_is_made, files)), deadline, f"{', '.join(map(str, files))}: no region was made there")
    monitors: list[HamiMonitor] = []
    try:
        for action in actions:
            if action == "restart" or action.startswith("size="):
                while monitors:
                    monitors.pop().close()
                if action != "restart":
                    for file in files:
                        os.truncate(file, _number(action))
            else:
                monitors = monitors or [HamiMonitor(file) for file in files]
                _do(monitors, action, deadline)
    finally:
        for monitor in monitors:
            monitor.close()


def _is_made(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            magic = load_layout(LAYOUT).constants["HL_HAMI_MAGIC"]
            return int.from_bytes(stream.read(4), "little") == magic
    except OSError:
        return False


def _do(monitors: Sequence[HamiMonitor], action: str, deadline: float) -> None:
    name, equals, value = action.partition("=")
    if action in ("block", "release"):
        for monitor in monitors:
            getattr(monitor, action)()
    elif action == "kernel":
        for monitor in monitors:
            _until(partial(_reaches, monitor, "last_kernel_time", 1), deadline, f"{monitor.path}: nothing was launched")
    elif name == "live" and equals:
        for monitor in monitors:
            reached = partial(_reaches, monitor, "proc_count", _number(action))
            _until(reached, deadline, f"{monitor.path}: less than {value} slots")
    elif name == "wait" and equals:
        time.sleep(_seconds(action, value))
    elif name == "rounds" and equals:
        count, slash, period = value.partition("/")
        for _ in range(_number(f"rounds={count}")):
            one_round(monitors)
            time.sleep(_seconds(action, period) if slash else 0)
    elif equals:
        for monitor in monitors:
            monitor.set(name, _number(action))
    else:
        raise RegionError(f"{action}: no action of a monitor; there are {ACTIONS}")


def _reaches(monitor: HamiMonitor, field: str, value: int) -> bool:
    return monitor.get(field) >= value


def _number(action: str) -> int:
    try:
        return int(action.partition("=")[2])
    except ValueError:
        raise RegionError(f"{action}: a whole number is wanted") from None


def _seconds(action: str, text: str) -> float:
    units = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
    for unit, scale in units.items():
        if text.endswith(unit):
            try:
                return float(text.removesuffix(unit)) * scale
            except ValueError:
                break
    raise RegionError(f"{action}: a duration in s, ms or us is wanted")


def _until(holds: Callable[[], bool], deadline: float, why: str) -> None:
    while not holds():
        if time.monotonic() >= deadline:
            raise RegionError(f"{why} in time; give it more, or start what makes it")
        time.sleep(_LOOK_S)
