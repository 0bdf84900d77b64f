"""The native build: which sources become which library, with which flags. Used by setup.py and by hand.

Targets take their sources by glob, so that a new C file needs no edit here. A library is linked to a temporary name
and renamed, so that running processes keep the one they have mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.codegen import compiler as cc
from lab.codegen import emit, engine, fingerprint, headers
from lab.codegen._write import write_files, write_text
from lab.codegen.failure import BuildError
from lab.spec import DEFAULT_DRIVER, Driver, driver_names, load_driver

ROOT = Path(__file__).parents[2]
GENERATED = ("hl_errors.c", "hl_names.c", "hl_versions.c")  # linked everywhere; what a target does not use is dropped
DEFINES = ("-D_GNU_SOURCE=", "-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS")
FLAGS = (
    "-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fno-semantic-interposition",
    "-ffunction-sections", "-fdata-sections", "-pthread",
)  # fmt: skip
SHARED = ("-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-Bsymbolic")
INCLUDES = ("shim/include", "shim/common", "shim/region", "shim/identity", "shim/preload", "fakes/common")
SANITIZERS = {
    "address": ("-fsanitize=address", "-fno-omit-frame-pointer"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """One library or program."""

    name: str
    output: str
    """Path under the native folder."""
    sources: tuple[str, ...]
    """Globs under the repository; the first one must match something."""
    generated: tuple[str, ...] = GENERATED
    soname: str = ""
    """Of a shared library; empty: a program."""
    export: str = ""
    """Generated version script."""
    visibility: str = "hidden"
    needs: tuple[str, ...] = ()
    """Targets whose outputs it is linked against."""
    flags: tuple[str, ...] = field(default=())
    like: str = ""
    """Compiled as another target is: the same sources and flags, so the same objects."""
    early: tuple[str, ...] = ()
    """Names of sources without sanitizers: what runs when AddressSanitizer's runtime, which calls dlsym to start, is
    not up yet."""


TARGETS: tuple[Target, ...] = (
    Target(
        "region",
        "libhooklab-region.so",
        ("shim/region/*.c", "shim/common/*.c"),
        soname="libhooklab-region.so",
        export="region.map",
        visibility="default",
    ),
    Target(
        "fake-cuda",
        "fake/libcuda.so.1",
        ("fakes/cuda/*.c", "fakes/common/*.c", "shim/common/*.c"),
        generated=(*GENERATED, "fake_cuda_stubs.c"),
        soname="libcuda.so.1",
        export="fake_cuda.map",
    ),
    Target(
        "fake-nvml",
        "fake/libnvidia-ml.so.1",
        ("fakes/nvml/*.c", "fakes/common/*.c", "shim/common/*.c"),
        generated=(*GENERATED, "fake_nvml_stubs.c"),
        soname="libnvidia-ml.so.1",
        export="fake_nvml.map",
    ),
    Target(
        "preload",
        "libhooklab-preload.so",
        ("shim/preload/*.c", "shim/preload/*.S", "shim/identity/*.c", "shim/region/*.c", "shim/common/*.c"),
        soname="libhooklab-preload.so",
        export="preload.map",
        early=("caller", "elf", "guard", "hl_names", "lookup", "real"),
    ),
    Target(
        "engine",
        "libhooklab-engine.so",
        ("shim/engine/*.c",),
        generated=(),
        soname="libhooklab-engine.so",
        export="engine.map",
    ),
    Target(
        "echo-cuda",
        "echo/libcuda.so.1",
        ("fakes/echo/*.c", "shim/preload/tables.c"),
        generated=(*GENERATED, "echo_cuda.c", "hl_signatures.c"),
        soname="libcuda.so.1",
        export="echo_cuda.map",
        flags=("-DHL_ECHO_CUDA=1",),
    ),
    Target(
        "echo-nvml",
        "echo/libnvidia-ml.so.1",
        ("fakes/echo/*.c", "shim/preload/tables.c"),
        generated=(*GENERATED, "echo_nvml.c", "hl_signatures.c"),
        soname="libnvidia-ml.so.1",
        export="echo_nvml.map",
        flags=("-DHL_ECHO_CUDA=0",),
    ),
    Target(
        "routes",
        "hooklab-routes",
        ("caller/routes/program/*.c", "caller/routes/*.c"),
        generated=(*GENERATED, "hl_signatures.c"),
        needs=("echo-cuda", "echo-nvml"),
    ),
    Target(
        "routes-plugin",
        "libhooklab-routes.so",
        ("caller/routes/*.c",),
        generated=(*GENERATED, "hl_signatures.c"),
        soname="libhooklab-routes.so",
        export="routes.map",
        needs=("echo-cuda", "echo-nvml"),
    ),
    Target(
        "routes-audit",
        "libhooklab-audit.so",
        ("caller/routes/audit/*.c",),
        generated=(),
        soname="libhooklab-audit.so",
        export="audit.map",
    ),
    Target("routes-host", "hooklab-routes-host", ("caller/routes/host/*.c",), generated=()),
    Target("caller", "hooklab-caller", ("caller/*.c", "shim/common/*.c"), needs=("fake-cuda", "fake-nvml")),
    Target("bench", "hooklab-bench", ("bench/*.c", "shim/common/*.c"), needs=("fake-cuda", "fake-nvml")),
    Target("box", "hooklab-box", ("box/*.c",), generated=()),
)


def _generation(driver: Driver) -> list[Target]:
    """The fake libraries of a driver generation: the default's objects with other stubs and exports."""
    targets = []
    for name, soname in (("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")):
        base = f"fake-{name}"
        source = next(target for target in TARGETS if target.name == base)
        whole = Target(
            f"{base}-{driver.branch}",
            f"{driver.folder}/{soname}",
            source.sources,
            generated=(*GENERATED, f"fake_{name}_stubs_{driver.branch}.c"),
            soname=soname,
            export=f"fake_{name}_{driver.branch}.map",
            like=base,
        )
        if name == "cuda" and driver.stages == 2:
            targets.append(
                replace(whole, sources=(), generated=(f"fake_cuda_stage_{driver.branch}.c",), like="fake-stage")
            )
            whole = replace(
                whole, name=f"{whole.name}-second", output=f"{whole.output}.1", soname="libcuda.so.1.1", like=base
            )
        targets.append(whole)
    return targets


TARGETS += tuple(
    target
    for driver in map(load_driver, driver_names())
    if driver.branch != DEFAULT_DRIVER
    for target in _generation(driver)
)
BY_NAME = {target.name: target for target in TARGETS}


def build(
    *,
    out: Path | None = None,
    temp: Path | None = None,
    only: Sequence[str] = (),
    sanitize: str | None = None,
    root: Path = ROOT,
) -> list[Path]:
    """Build targets (all of them by default) under `out`; returns the paths built. BuildError says why not."""
    kind = sanitize or "native"
    out = out or (root / "lab" / "_native" if not sanitize else root / "build" / kind / "out")
    temp = temp or root / "build" / kind
    if platform.system() != "Linux":
        raise BuildError(f"the native parts are for Linux, this is {platform.system()}: use the pure-Python commands")
    unknown = [name for name in only if name not in BY_NAME]
    if unknown:
        raise BuildError(f"{unknown[0]}: no such target; known are {', '.join(BY_NAME)}")
    if not (root / "shim").is_dir():
        raise BuildError(f"no C sources under {root}: build from a clone of the repository")
    with _lock(temp):
        job = Job(root, out, temp, sanitize)
        return [job.make(target) for target in _ordered(only)]


@contextlib.contextmanager
def _lock(temp: Path) -> Iterator[None]:
    """One build at a time in a folder: two would write the same objects."""
    temp.mkdir(parents=True, exist_ok=True)
    with (temp / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ordered(only: Sequence[str]) -> list[Target]:
    wanted = set(only or BY_NAME)
    for name in tuple(wanted):
        wanted.update(BY_NAME[name].needs)
    return [target for target in TARGETS if target.name in wanted]


class Job:
    """One run of the build: the tools and folders every target shares."""

    def __init__(self, root: Path, out: Path, temp: Path, sanitize: str | None) -> None:
        self.root, self.out, self.temp = root, out, temp
        self.sanitizer = SANITIZERS[sanitize] if sanitize else ()
        self.compiler = cc.find(temp)
        self.headers = headers.find()
        self.gen = temp / "gen"
        write_files(self.gen, emit.emit())
        self.fingerprint = fingerprint.current()
        self.info: dict[str, Any] = {
            "compiler": self.compiler.version,
            "headers": dict(self.headers.versions),
            "revision": _revision(root),
            "sanitize": sanitize or "",
            "sanitizer_runtime": _runtime(self.compiler, sanitize),
        }

    def make(self, target: Target) -> Path:
        if target.name == "engine":
            path = engine.make(self, target)
        else:
            path = self.link(target, self.objects(target, self.sources(target)))
        self.record(target)
        return path

    def sources(self, target: Target) -> list[Path]:
        found: list[Path] = []
        for index, pattern in enumerate(target.sources):
            matches = sorted(self.root.glob(pattern))
            if not index and not matches:
                raise BuildError(
                    f"{target.name}: no source matches {pattern} under {self.root}: the clone is not complete"
                )
            found += matches
        return found

    def objects(self, target: Target, sources: Iterable[Path], extra: Iterable[str] = ()) -> list[Path]:
        named = [(path, "-".join(path.relative_to(self.root).with_suffix("").parts)) for path in sources]
        named += [(self.gen / name, f"gen-{Path(name).stem}") for name in target.generated]
        flags, folder = [*self.flags(target), *extra], self.temp / (target.like or target.name)
        early = [item for item in named if item[0].stem in target.early]
        late = [item for item in named if item not in early]
        objects = cc.compile_all(self.compiler, late, [*flags, *self.sanitizer], folder)
        return objects + cc.compile_all(self.compiler, early, flags, folder)

    def flags(self, target: Target) -> list[str]:
        includes = [f"-I{self.gen}", *(f"-I{self.root / name}" for name in INCLUDES)]
        vendor = [text for directory in self.headers.directories for text in ("-isystem", str(directory))]
        return [
            *FLAGS,
            f"-fvisibility={target.visibility}",
            *DEFINES,
            *includes,
            *vendor,
            *target.flags,
        ]

    def link(self, target: Target, objects: Sequence[Path], extra: Sequence[str] = ()) -> Path:
        path = self.out / target.output
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".tmp")
        kind = [*SHARED, f"-Wl,-soname,{target.soname}", f"-Wl,--version-script={self.gen / target.export}"]
        libraries = [str(self.out / BY_NAME[name].output) for name in target.needs]
        command = [
            *self.compiler.command,
            *(kind if target.soname else ["-pie"]),
            *("-Wl,--gc-sections", "-pthread", *self.sanitizer),
            *map(str, objects),
            *(["-Wl,--no-as-needed", *libraries] if libraries else []),
            *("-Wl,--as-needed", *extra, "-ldl", "-lm", "-lrt"),
            *("-o", str(partial)),
        ]
        cc.run(command, f"{target.output} does not link")
        partial.replace(path)
        return path

    def record(self, target: Target) -> None:
        """build.json beside the natives: what they were made of; fingerprints by target, built together or not."""
        path = self.out / "build.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        built_from = {**known.get("built_from", {}), target.name: self.fingerprint}
        write_text(path, json.dumps({**known, **self.info, "built_from": built_from}, indent=1, sort_keys=True) + "\n")


def _runtime(compiler: cc.Compiler, sanitize: str | None) -> str:
    """The sanitizer library that must come first in LD_PRELOAD; only AddressSanitizer has that need."""
    if sanitize != "address":
        return ""
    path = cc.run([*compiler.command, "-print-file-name=libasan.so"], "no AddressSanitizer runtime").strip()
    if not Path(path).is_absolute():
        raise BuildError(
            f"{compiler.command[0]} has no libasan.so: install libgcc-12-dev (Debian: gcc's own dev package)"
        )
    return str(Path(path).resolve())


def _revision(root: Path) -> str:
    """The commit the natives were built from, with '+' for a dirty tree; empty outside a clone."""
    if not shutil.which("git") or not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return ""
    dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
