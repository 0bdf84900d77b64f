"""Containers as a device plugin's Allocate makes them: what is mounted where, who holds the namespaces.

The C tool hooklab-box does the mounting (box/mounts.c explains the spec). Nothing is mounted outside the container's
own mount namespace. Where the machine forbids namespaces a container is only a scratch directory, its processes are
plain ones under LD_PRELOAD, and `missing` says what that leaves unjudged.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import native
from lab.runner.guest import BUILTIN_LIBRARY, GuestError
from lab.runner.program import quote

VGPU = "/usr/local/vgpu"
CONFIG = f"{VGPU}/hooklab.conf"
LOCKS = "/tmp/vgpulock"
_START_PATIENCE_S = 30.0


def _probe() -> str:
    if sys.platform != "linux":
        return f"no containers on {sys.platform}: Linux namespaces are needed"
    try:
        done = subprocess.run(
            [str(native.path("hooklab-box")), "probe"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no {error}"
    return done.stdout.strip() or f"no the probe ended with {done.returncode}"


@functools.cache
def probe_isolation() -> str:
    """Why this machine allows no containers with private mounts and PIDs; empty when it does.

    Asked of the kernel, then tried with all the mounts of an allocation: a machine may allow the one and not the other.
    """
    answer = _probe()
    if answer not in ("direct", "user"):
        return answer.removeprefix("no ")
    with tempfile.TemporaryDirectory(prefix="hooklab-probe-") as folder:
        scratch = Path(folder)
        trial = Container(
            Layout(
                name="probe",
                scratch=scratch,
                vgpu=scratch / "vgpu",
                region_name="probe.cache",
                locks=scratch / "locks",
                private_pids=True,
                library=native.directory() / "hooklab-box",  # any file: nothing is run in it
                library_inside=f"{VGPU}/probe",
                preload=(),
                cache=None,
            ),
            isolated=True,
        )
        try:
            trial.start({})
        except (GuestError, OSError) as error:
            return str(error).removeprefix("container probe: ")
        finally:
            trial.stop()
    return ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What one container has. Paths are of this machine unless they say `inside`."""

    name: str
    scratch: Path  # made by us, removed with the run
    vgpu: Path  # the directory that becomes /usr/local/vgpu: region and lock files of its interposer
    region_name: str
    locks: Path  # shared by all containers of the node
    private_pids: bool
    library: Path | None  # the interposer
    library_inside: str
    preload: tuple[str, ...]  # what ld.so.preload says, as seen inside
    cache: Path | None  # ld.so.cache that knows the fake driver first
    keep: tuple[Path, ...] = ()  # must stay visible where /tmp is the container's own
    read_only: tuple[tuple[Path, str], ...] = ()  # directories of this machine and where the container has them
    directories: tuple[tuple[Path, str], ...] = ()  # what the interposer writes to: ours, and its place inside


class Container:
    """A container that is up. ``init`` is the host PID of the process that holds its namespaces, 0 without any."""

    def __init__(self, layout: Layout, *, isolated: bool) -> None:
        self.layout = layout
        self.isolated = isolated
        self.init = 0
        self._user = False
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def region(self) -> Path:
        """The region file as this machine sees it."""
        return self.layout.vgpu / self.layout.region_name

    @property
    def region_inside(self) -> str:
        """The region file as the container's processes see it."""
        return f"{VGPU}/{self.layout.region_name}" if self.isolated else str(self.region)

    @property
    def library_inside(self) -> str:
        """The interposer as the container's processes see it; empty without one."""
        if self.layout.library is None:
            return ""
        return self.layout.library_inside if self.isolated else str(self.layout.library)

    def start(self, config: Mapping[str, str]) -> None:
        """Make the directories and, where allowed, the namespaces. GuestError when the tool cannot.

        ``config`` becomes the container's hooklab.conf, for children with a cleared environment.
        """
        layout = self.layout
        for directory in (layout.scratch / "tmp", layout.vgpu, layout.locks, *(one for one, _ in layout.directories)):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o1777)
        if not self.isolated:
            return
        lines = "".join(f"{key}={value}\n" for key, value in config.items())
        (layout.scratch / "hooklab.conf").write_text(lines, encoding="utf-8")
        spec = layout.scratch / "mounts"
        spec.write_text("".join(line + "\n" for line in self._mounts()), encoding="utf-8")
        reading, writing = os.pipe()
        command = [str(native.path("hooklab-box")), "init", "--spec", str(spec), "--report", str(writing)]
        if layout.private_pids:
            command.append("--pid-namespace")
        with os.fdopen(reading, "rb") as report:
            try:
                self._holder = subprocess.Popen(
                    command, pass_fds=(writing,), start_new_session=True, stdin=subprocess.DEVNULL, env={}
                )
            finally:
                os.close(writing)
            answers = _read_all(report.fileno(), _START_PATIENCE_S).splitlines()  # ends when both processes closed it
        for line in answers:
            words = line.split(" ", 1)
            if words[0] == "error":
                self.stop()
                raise GuestError(f"container {layout.name}: {words[1]}")
            if words[0] == "pid":
                number, mode = words[1].split()
                self.init, self._user = int(number), mode == "user"
        if "ready" not in answers:
            self.stop()
            raise GuestError(f"container {layout.name}: hooklab-box did not get ready in {_START_PATIENCE_S:g} s")

    def enter_arguments(self) -> list[str]:
        """Arguments of ``hooklab-box enter`` that lead into this container."""
        if not self.init:
            return []
        found = ["--of", str(self.init)]
        if self._user:
            found.append("--user")
        if self.layout.private_pids:
            found.append("--pid-namespace")
        return found

    def stop(self) -> None:
        """End the holder (and with a private PID namespace everything in it)."""
        if self._holder is None:
            return
        if self.init and self._holder.poll() is None:  # a holder that ended has reaped its child: the number is free
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        self._holder = None
        self.init = 0

    def _mounts(self) -> Iterable[str]:
        layout = self.layout
        for path in layout.keep:
            yield f"keep {quote(str(path))}"
        for above in self._mirrors():
            yield f"mirror {quote(above)}"
        yield f"bind {quote(str(layout.vgpu))} {VGPU} rw"
        yield f"bind {quote(str(layout.scratch / 'hooklab.conf'))} {CONFIG} ro"
        if layout.library is not None:
            if layout.library.name == BUILTIN_LIBRARY:  # it needs the engine beside it
                yield f"bind {quote(str(layout.library.parent))} {quote(os.path.dirname(layout.library_inside))} ro"
            else:
                yield f"bind {quote(str(layout.library))} {quote(layout.library_inside)} ro"
        yield from self._etc()
        yield f"cover {quote(str(layout.scratch / 'tmp'))} /tmp"
        yield f"bind {quote(str(layout.locks))} {LOCKS} rw"
        for source, inside in layout.read_only:
            yield f"bind {quote(str(source))} {quote(inside)} ro"
        for outside, inside in layout.directories:
            yield f"bind {quote(str(outside))} {quote(inside)} rw"
        if layout.private_pids:
            yield "proc"

    def _mirrors(self) -> list[str]:
        """Directories of this machine in which new names have to be made: never in the directories themselves."""
        layout = self.layout
        wanted = [VGPU, *(inside for _, inside in (*layout.read_only, *layout.directories))]
        if layout.library is not None:
            wanted += [layout.library_inside, "/etc/ld.so.preload"]
        found: list[str] = []
        for path in wanted:
            above = path
            while not os.path.exists(above):
                above = os.path.dirname(above)
            above = os.path.realpath(above)
            if os.path.exists(path) or os.path.realpath(path).startswith(("/tmp/", f"{VGPU}/")) or above in found:
                continue
            found.append(above)
        return sorted(found)

    def _etc(self) -> Iterable[str]:
        layout = self.layout
        if layout.library is None and layout.cache is None:
            return
        if layout.library is not None:
            preload = layout.scratch / "ld.so.preload"
            preload.write_text("".join(f"{name}\n" for name in layout.preload), encoding="utf-8")
            yield f"bind {quote(str(preload))} /etc/ld.so.preload ro"
        if layout.cache is not None and os.path.exists("/etc/ld.so.cache"):
            yield f"bind {quote(str(layout.cache))} /etc/ld.so.cache ro"


def _read_all(descriptor: int, patience_s: float) -> str:
    """What comes until the other end is closed or the time is over."""
    found, deadline = b"", time.monotonic() + patience_s
    while (left := deadline - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        part = os.read(descriptor, 65536)
        if not part:
            break
        found += part
    return found.decode(errors="replace")


_DEVELOPMENT = ("libcuda.so", "libnvidia-ml.so")  # a driver's links without version, which some interposers open


def development_links(folder: Path, driver: Path) -> Path:
    """`folder`, made, with a driver's links without version in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _DEVELOPMENT:
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(driver / f"{name}.1")
    return folder


def loader_cache(scratch: Path, driver: Path) -> Path | None:
    """A loader cache in which the libraries of ``driver`` come first; None where there is no ldconfig.

    ldconfig takes long enough to be felt, so its answer is kept in the user's cache folder for as long as neither the
    machine's own cache nor the driver changes.
    """
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if ldconfig is None:
        return None
    stamps = [(str(path), path.stat().st_mtime_ns) for path in (Path("/etc/ld.so.cache"), driver) if path.exists()]
    stem = f"ld-{hashlib.sha256(repr((stamps, _DEVELOPMENT)).encode()).hexdigest()[:20]}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hooklab"
    kept = folder / f"{stem}.cache"
    if kept.is_file() and (folder / stem).is_dir():
        return kept
    for place in (folder, scratch):
        try:
            links = development_links(place / stem, driver)
        except OSError:
            continue
        config, fresh = scratch / "ld.so.conf", scratch / kept.name
        config.write_text(f"{driver}\n{links}\ninclude /etc/ld.so.conf\n", encoding="utf-8")
        done = subprocess.run(
            [ldconfig, "-X", "-C", str(fresh), "-f", str(config)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not fresh.is_file():
            return None
        if place is scratch:
            return fresh
        try:
            partial = kept.with_name(f"{kept.name}.{os.getpid()}")
            shutil.copyfile(fresh, partial)
            os.replace(partial, kept)
        except OSError:
            return fresh
        return kept
    return None


def visible_paths(*more: Path | str | None) -> tuple[Path, ...]:
    """What a guest must still see when /tmp is its own: Python, this package, the natives, the working directory."""
    paths = [sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent), str(native.directory()), os.getcwd()]
    paths += [part for part in os.environ.get("PATH", "").split(":") if part.startswith("/tmp/")]
    paths += [part for part in sys.path if part.startswith("/tmp/")]
    paths += [str(path) for path in more if path]
    found = {Path(os.path.abspath(path)) for path in paths} | {Path(os.path.realpath(path)) for path in paths}
    return tuple(sorted(path for path in found if path.exists()))
