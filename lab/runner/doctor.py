"""What is built, what this machine allows, and what a running process really does: the facts behind `hooklab doctor`.

Each finding is a fact with a state and, unless it is good, a mend. Nothing here changes the machine.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import filecmp
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import native
from lab.codegen import fingerprint
from lab.codegen.build import TARGETS
from lab.runner import proc
from lab.runner.container import CONFIG
from lab.runner.guest import BUILTIN_LIBRARY

State = Literal["ok", "warn", "bad"]
NATIVES = tuple(target.output for target in TARGETS)
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
CORES = "CUDA_DEVICE_SM_LIMIT"
_RESTART = "restart the process to load the installed build"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: what was looked at, what was seen, whether it is good, and what to do if not."""

    subject: str
    seen: str
    state: State = "ok"
    mend: str = ""


def examine_build() -> list[Finding]:
    """The package and its native parts: versions, engine variant, policy hash, a clash of the import name."""
    found = [
        Finding("hooklab", _distribution_version()),
        Finding("python", f"{platform.python_version()} ({sys.executable})"),
    ]
    here = Path(native.__file__).resolve().parent
    for entry in sys.path:
        candidate = Path(entry or ".") / "lab" / "__init__.py"
        if candidate.is_file() and candidate.resolve().parent != here:
            found.append(
                Finding(
                    "import name",
                    f"another package `lab` at {candidate.parent}",
                    "warn",
                    "run hooklab in its own environment",
                )
            )
    if sys.platform != "linux":
        return [
            *found,
            Finding("native parts", f"not available on {sys.platform}", "warn", "use Linux for run, exec and bench"),
        ]
    for name in NATIVES:
        try:
            native.path(name)
        except FileNotFoundError as error:
            found.append(Finding(name, "missing", "bad", str(error)))
    try:
        info = native.build_info()
    except (OSError, ValueError) as error:
        return [*found, Finding("build", "no build.json that can be read", "bad", str(error))]
    for key, value in sorted(info.items()):
        if key == "built_from" or value == "":
            continue
        text = ", ".join(f"{name}: {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)
        found.append(Finding(f"build: {key}", text))
    changed = fingerprint.difference(info)
    if changed:
        found.append(
            Finding("natives", f"built from other {changed} than the sources beside them", "bad", native.REBUILD)
        )
    return found


def examine_machine() -> list[Finding]:
    """What the kernel and the installed tools allow: namespaces, debugger, a real driver, limits."""
    found = [
        Finding("kernel", f"{platform.release()} {platform.machine()}"),
        Finding("C library", " ".join(platform.libc_ver())),
    ]
    found.append(
        Finding("processors", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()))
    )
    if sys.platform == "linux":
        from lab.runner.container import probe_isolation

        reason = probe_isolation()
        if reason:
            found.append(Finding("namespaces", reason, "warn", "expectations that need isolation will be unknown here"))
        else:
            found.append(Finding("namespaces", "user, mount and PID namespaces can be made"))
        limit = Path("/proc/sys/vm/max_map_count")
        if limit.is_file():
            found.append(Finding("mappings a process may hold", limit.read_text().strip()))
    if shutil.which("gdb"):
        found.append(Finding("backtraces", "gdb found"))
    else:
        found.append(Finding("backtraces", "no gdb", "warn", "install gdb to get stacks of hung or crashed processes"))
    driver = ctypes.util.find_library("cuda")
    found.append(Finding("real driver", driver or "none: --on real is not possible here"))
    return found


def examine_process(pid: int) -> list[Finding]:
    """A running process: interposer, drivers, every driver reference and where it leads, its region.

    Raises proc.ProcessError with one line when it cannot be read.
    """
    maps = proc.mappings(pid)
    environment = proc.environment(pid)
    root = Path(f"/proc/{pid}/root")
    found = [Finding("command", _command_line(pid))]
    mapped = {path: proc.file(pid, maps, path) for path in proc.objects(maps)}
    drivers = {path for path in mapped if Path(path).name.split(".so")[0] in ("libcuda", "libnvidia-ml")}
    probe = frozenset({"cuInit", "nvmlInit_v2", "cuMemAlloc_v2"})
    interposers = {
        path: mapped[path]
        for path in mapped
        if path not in drivers and ".so" in path and proc.exports(mapped[path], probe)
    }
    for path, file in sorted(interposers.items()):
        stale = any(m.deleted for m in maps if m.path == path)
        found.append(
            Finding(
                "interposer",
                f"{path}{', replaced or removed on disk since' if stale else ''}",
                "warn" if stale else "ok",
                "restart the process to load the new file" if stale else "",
            )
        )
        found.append(_revision(path, file))
    if not interposers:
        found.append(
            Finding("interposer", "none mapped", "bad", "start the process under hooklab exec or set LD_PRELOAD")
        )
    for path in sorted(drivers):
        fake = (
            "fake"
            if Path(path).parent.name.partition("-")[0] == "fake"
            else "not ours: a real driver or a foreign fake"
        )
        found.append(Finding("driver", f"{path} ({fake})"))
    engine = [path for path in proc.objects(maps) if Path(path).name == "libhooklab-engine.so"]
    found.append(Finding("engine", "booted" if engine else "not loaded: no policy decision was needed yet"))
    found.extend(_reference_findings(pid, maps, interposers, drivers))
    found.extend(_region_findings(environment, root, pid))
    return found


def _revision(path: str, file: Path) -> Finding:
    """Which build a mapped interposer is: the installed one, another with its build.json beside it, a foreign one."""
    with contextlib.suppress(OSError):
        installed = native.path(BUILTIN_LIBRARY)
        if filecmp.cmp(file, installed, shallow=False):
            return Finding("revision", f"{native.build_info().get('revision') or 'unknown'} (the installed build)")
    if Path(path).name != BUILTIN_LIBRARY:
        return Finding("revision", "not ours: a foreign interposer")
    with contextlib.suppress(OSError, ValueError):
        revision = json.loads(file.with_name("build.json").read_text(encoding="utf-8")).get("revision")
        return Finding("revision", f"{revision or 'unknown'} (another build than the installed one)", "warn", _RESTART)
    return Finding("revision", "another build than the installed one", "warn", _RESTART)


def _reference_findings(
    pid: int, maps: list[proc.Mapping], interposers: Mapping[str, Path], drivers: set[str]
) -> list[Finding]:
    """Where driver references lead, counted by object; and each that an interposer could have had and did not get."""
    counts: Counter[tuple[str, str]] = Counter()
    past: list[proc.Reference] = []
    for reference in proc.references(pid, maps):
        if reference.referrer in interposers or reference.referrer in drivers:
            continue
        if reference.lazy:
            kind = "not bound yet"
        elif reference.target in interposers:
            kind = "interposer"
        elif reference.target in drivers:
            kind = "driver"
        else:
            kind = ""  # dlsym of the C library, or a name that only resembles the driver's
        if kind:
            counts[Path(reference.referrer).name, kind] += 1
        if kind in ("driver", "") and reference.target:
            past.append(reference)
    found = [Finding(f"references of {name}", f"{count} to {kind}") for (name, kind), count in sorted(counts.items())]
    names = frozenset(reference.symbol for reference in past)
    hooked = frozenset().union(*(proc.exports(file, names) for file in interposers.values()))
    found.extend(
        Finding(
            "escape",
            f"{reference.symbol} of {reference.referrer} leads past the interposer to {reference.target}",
            "bad",
            "the object was bound before the interposer or with RTLD_DEEPBIND",
        )
        for reference in past
        if reference.symbol in hooked
    )
    return found


def _region_findings(environment: dict[str, str], root: Path, pid: int) -> list[Finding]:
    settings = _settings(root) | environment
    path = settings.get(REGION)
    limits = {
        name: value for name, value in sorted(settings.items()) if name.startswith(CORES) and value not in ("", "0")
    }
    limit = ", ".join(f"{name}={value}" for name, value in limits.items())
    if not path:
        found = [Finding("region", f"{REGION} is not set: the ledger is private to the process")]
        if limit:
            seen = f"{limit} is set; its state is private to the process, too"
            found.append(Finding("core limit", seen, "warn", f"set {REGION}: what the limiter does is then seen"))
        return found
    file = Path(f"{root}{path}")
    if not file.exists():
        found = [Finding("region", f"{path} does not exist yet: nothing was charged")]
        return [*found, Finding("core limit", f"{limit} is set; nothing was launched yet")] if limit else found
    from lab.region import Region, RegionError, is_hami

    if is_hami(file):
        found = [Finding("region", f"{path}: layout hami-1.2")]
        if limit:
            seen = f"{limit} is set; this layout has no place for the state of a limiter"
            found.append(Finding("core limit", seen, "warn", "HOOKLAB_REGION_LAYOUT=hooklab-1 shows it"))
        return found
    try:
        with Region.open(file) as region:
            problems = region.check()
            found = [Finding("region", f"{path}: {len(region.processes())} live processes")]
            found.extend(
                Finding("region problem", str(problem), "bad", "hooklab region check FILE") for problem in problems
            )
            found.extend(_pacing_findings(file, pid, limit))
            return found
    except RegionError as error:
        found = [Finding("region", str(error), "bad", "see hooklab region check")]
        if limit:
            seen = f"{limit} is set; blind: without books nothing is paced"
            found.append(Finding("core limit", seen, "bad", "launches pass: see the process's stderr"))
        return found


def _pacing_findings(file: Path, pid: int, limit: str) -> list[Finding]:
    """Why a process is, or is not, held to its core limit: what its limiter says of itself."""
    from lab.region.pacing import read_pacing

    innermost = proc.innermost_pid(pid)
    namespace = proc.pid_namespace(pid)
    rows = [row for row in read_pacing(file) if row.pid == innermost and row.pid_namespace == namespace]
    found: list[Finding] = []
    if limit and not rows:
        found.append(Finding("core limit", f"{limit} is set; nothing was launched yet"))
    for row in rows:
        mend = "launches pass: see the reasons, and the process's stderr" if row.unlimited else ""
        if row.instead:
            mend = mend or "HOOKLAB_PACING is a controller's name or /path/to/file.py:Class; see the process's stderr"
        found.extend(Finding("core limit", line, "warn" if mend else "ok", mend) for line in row.lines())
    return found


def _settings(root: Path) -> dict[str, str]:
    """What a container's own file says to processes whose environment was cleared; empty without one."""
    try:
        lines = Path(f"{root}{CONFIG}").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "unknown"


def _distribution_version() -> str:
    try:
        return importlib.metadata.version("hooklab")
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a distribution"
