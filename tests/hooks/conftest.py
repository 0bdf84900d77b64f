"""The programs and libraries of the lookup tests: a miniature driver of both libraries, hosts and plug-ins."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from lab.hooks import matrix
from lab.hooks.matrix import Options
from lab.hooks.model import Matrix
from lab.hooks.project import Project

HOSTS = Path(__file__).parents[1] / "native" / "shim"
TWIN = Project(
    hooks=(
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync*",
        "cuMemFreeAsync*",
        "cuGetProcAddress*",
        "nvmlDeviceGetMemoryInfo*",
        "nvmlDeviceGetFanSpeed_v2",
    ),
    passes={"*": "the example hooks a few names"},
    dialect="hooklab",
)
LOOSE = ("-w", "-Wno-error", "-fno-builtin", "-O1")


@pytest.fixture(scope="session")
def variant(
    compile_c: Callable[..., Path], generated: Path, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`variant(*flags, replace={"file.c": other})`: the preload library built another way, under its own name."""

    def build(*flags: str, replace: Mapping[str, Path] | None = None) -> Path:
        sources = [*sorted(root.glob("shim/preload/*.[cS]")), *sorted(root.glob("shim/region/*.c"))]
        sources += [*sorted(root.glob("shim/common/*.c")), *sorted(generated.glob("hl_*.c"))]
        sources = [(replace or {}).get(source.name, source) for source in sources]
        fixed = ("-shared", "-fPIC", "-fvisibility=hidden", f"-iquote{root}/shim/preload", "-Wl,-Bsymbolic")
        script = f"-Wl,--version-script={generated}/preload.map"
        library = compile_c(sources[0], *fixed, script, *flags, extra=sources[1:], name="variant_preload.so")
        return library.rename(tmp_path_factory.mktemp("variant") / "libhooklab-preload.so")

    return build


@pytest.fixture(scope="session", params=["built", "old-libc"])
def shim(request: pytest.FixtureRequest, native: Path, variant: Callable[..., Path]) -> Path:
    """The preload library under test, and the same without _dl_find_object, as on C libraries before 2.35."""
    return native / "libhooklab-preload.so" if request.param == "built" else variant("-DHL_NO_FIND_OBJECT")


@pytest.fixture(scope="session")
def mini(compile_c: Callable[..., Path], generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the miniature driver: every name of the table except cuCtxCreate_v4."""
    folder = tmp_path_factory.mktemp("mini")
    shared: dict[str, tuple[str, ...]] = {}
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        script = folder / f"{soname}.map"
        script.write_text("{ global: cu*; nvml*; mini_*; local: cuCtxCreate_v4; *; };\n")
        flags = (f"-Wl,--version-script={script}", "-Wl,-Bsymbolic", f"-Wl,-soname,{soname}", "-Wl,--default-symver")
        shared[soname] = ("-shared", "-fPIC", *LOOSE, *flags)
    tables = [generated / name for name in ("hl_names.c", "hl_versions.c")]
    cuda = compile_c(
        HOSTS / "mini_names.c",
        "-DMINI_CUDA",
        *shared["libcuda.so.1"],
        extra=[HOSTS / "mini_driver.c", *tables],
        name="mini_libcuda.so.1",
    )
    nvml = compile_c(HOSTS / "mini_names.c", "-DMINI_NVML", *shared["libnvidia-ml.so.1"], name="mini_libnvidia-ml.so.1")
    cuda.rename(folder / "libcuda.so.1")
    nvml.rename(folder / "libnvidia-ml.so.1")
    return folder


@pytest.fixture(scope="session")
def run(mini: Path, sanitizer_runtime: str) -> Callable[..., list[str]]:
    """`run(program, *arguments, preload=[...], drivers=folder)`: the lines it prints, over the miniature driver."""

    def start(
        program: Path,
        *arguments: str | Path,
        preload: Sequence[Path] = (),
        drivers: Path = mini,
        **variables: str,
    ) -> list[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "HOOKLAB_", "LD_"))}
        environment = {**kept, "LD_LIBRARY_PATH": str(drivers), **variables}
        libraries = [*([sanitizer_runtime] if sanitizer_runtime else []), *preload]
        if libraries:
            environment["LD_PRELOAD"] = ":".join(map(str, libraries))
        done = subprocess.run(
            [program, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
        assert done.stderr == ""
        return done.stdout.splitlines()

    return start


@pytest.fixture(scope="session", params=["-O0", "-O2"])
def level(request: pytest.FixtureRequest) -> str:
    """How the host is compiled: without optimisation a C tail call is a call, which changes the caller."""
    return str(request.param)


@pytest.fixture(scope="session")
def twin(compile_c: Callable[..., Path], root: Path) -> Callable[..., Path]:
    """`twin("V1_ONLY")`: the faithful interposer with a planted fault; without a name, the clean one."""

    def build(fault: str = "CLEAN") -> Path:
        flags = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden", f"-D{fault}")
        source = root / "tests" / "native" / "interposers" / "twin.c"
        return compile_c(
            source, *flags, extra=[root / "shim" / "preload" / "tables.c"], name=f"libtwin-{fault.lower()}.so"
        )

    return build


@pytest.fixture(scope="session")
def examine(native: Path) -> Callable[..., Matrix]:
    """`examine(library)`: its matrix over the fake driver, the program as host, judged by what the twin promises."""

    made: dict[tuple[object, ...], Matrix] = {}

    def run(library: Path | str, *, hosts: tuple[str, ...] = ("program",), project: Project = TWIN) -> Matrix:
        key = (str(library), hosts, id(project))
        if key not in made:
            made[key] = matrix.examine(Options(interposer=str(library), project=project, hosts=hosts, patience=3))
        return made[key]

    return run


@pytest.fixture(scope="session")
def ours(native: Path) -> Matrix:
    """The whole matrix of our own shim."""
    return matrix.examine(Options())
