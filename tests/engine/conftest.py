"""Builds what the engine's tests need: the engine in both variants and the hosts, all in a temporary folder.

Everything that calls the engine runs in a process of its own with a time limit, so that a deadlock or a crash is a
failed test and not a lost test run.
"""

import functools
import glob
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.codegen import freeze, libpython
from lab.codegen.build import SANITIZERS

ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "tests" / "native" / "engine"
CC = shlex.split(os.environ.get("CC", "cc"))
FLAGS = [
    "-std=gnu11",
    "-D_GNU_SOURCE=",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{ROOT}/shim/include",
    "-pthread",
]


def compile_engine(directory: Path, variant: str) -> Path:
    """The engine of one variant from the sources of this tree, over the Python that runs the tests.

    With $HOOKLAB_SANITIZE our own part of it is sanitized; the interpreter is not.
    """
    plan = libpython.plan(variant)
    freeze.write(directory)
    sources = sorted(glob.glob(f"{ROOT}/shim/engine/*.c"))
    target = directory / "libhooklab-engine.so"
    flags = [*FLAGS, *SANITIZERS.get(os.environ.get("HOOKLAB_SANITIZE", ""), ()), f"-I{directory}", *plan.compile_flags]
    command = [*CC, *flags, *sources, "-o", str(target), *plan.link_flags]
    subprocess.run(command, check=True, timeout=120)
    plan.install_copy(directory)
    return target


@dataclass(frozen=True)
class Result:
    """How a host ended. `status` is negative for a signal."""

    status: int
    out: str
    err: str


def run_host(
    command: Iterable[str | Path],
    *,
    engine: Path,
    policy: str = "",
    environment: Mapping[str, str] | None = None,
    timeout: float = 60,
    closed: bool = False,
) -> Result:
    """Run one host to its end. One that hangs is aborted, and the failure says where its threads were waiting."""
    variables = {**os.environ, "THIN_ENGINE": str(engine), "THIN_POLICY": policy, **(environment or {})}
    words = [str(word) for word in command]
    if closed:
        words = ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *words]
    process = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        waiting = _where(process.pid)
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{words} hangs after {timeout} s\n{waiting}\n{out}{err}")
    return Result(process.returncode, out, err)


def _where(pid: int) -> str:
    """What the kernel knows of a hung process's threads: state, wait channel and system call; no debugger needed."""
    lines = []
    for task in sorted(glob.glob(f"/proc/{pid}/task/*")):
        facts = []
        for name in ("comm", "wchan", "syscall"):
            try:
                facts.append(Path(task, name).read_text().strip())
            except OSError as error:
                facts.append(f"({error.strerror})")
        lines.append(f"thread {Path(task).name}: {' | '.join(facts)}")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """Runs a host (see `run_host`) and holds its end against `status`."""

    def run_and_expect(command: Iterable[str | Path], *, status: int = 0, **options: Any) -> Result:
        result = run_host(command, **options)
        assert result.status == status, f"status {result.status}\n{result.out}{result.err}"
        return result

    return run_and_expect


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The engine library of a variant, built once."""
    built: dict[str, Path] = {}

    def engine(variant: str) -> Path:
        if variant not in built:
            built[variant] = compile_engine(tmp_path_factory.mktemp(variant), variant)
        return built[variant]

    return engine


@pytest.fixture(params=["static", "copy"])
def engine(request: pytest.FixtureRequest, engines: Callable[[str], Path]) -> Path:
    """The engine library, in both variants."""
    return engines(request.param)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A compiled C host, or one of the libraries gil and latecomer, by name."""
    directory = tmp_path_factory.mktemp("hosts")
    parts = {"gil": ["gil.c", "thin.c"], "latecomer": ["latecomer.c"]}

    def build(name: str) -> Path:
        target = directory / name
        if not target.exists():
            sources = [str(HOSTS / part) for part in parts.get(name, [f"{name}.c", "thin.c"])]
            kind = ["-shared", "-fPIC"] if name in parts else ["-rdynamic"]
            subprocess.run([*CC, *FLAGS, *kind, *sources, "-o", str(target), "-ldl"], check=True, timeout=60)
        return target

    return build


class Server:
    """A C host that asks the engine what it is told to (serve.c). `booted` is the answer of boot."""

    def __init__(self, program: Path, engine: Path, policy: str, environment: Mapping[str, str]) -> None:
        variables = {**os.environ, "THIN_ENGINE": str(engine), "THIN_POLICY": policy, **environment}
        self.process = subprocess.Popen(
            [program], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        first, _, self.reason = self._line().partition(" ")
        self.booted = int(first)

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            self.process.wait(timeout=30)
            pytest.fail(f"the host ended with status {self.process.returncode}: {self.process.communicate()[1]}")
        return line[:-1]

    def text(self, *words: object) -> str:
        """The answer line to one question."""
        assert self.process.stdin
        print(*words, file=self.process.stdin, flush=True)
        return self._line()

    def ask(self, *words: object) -> int:
        """The answer to one question as a number."""
        return int(self.text(*words))

    def close(self) -> tuple[int, str]:
        """Status and standard error of the host after its end."""
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def serve(host: Callable[[str], Path]) -> Iterator[Callable[..., Server]]:
    """Starts servers for an engine and a policy; every one must end well and have written nothing to standard error."""
    servers: list[Server] = []

    def start(engine: Path, policy: str = "", **environment: str) -> Server:
        servers.append(Server(host("serve"), engine, policy, environment))
        return servers[-1]

    yield start
    assert [server.close() for server in servers] == [(0, "")] * len(servers)


@pytest.fixture(scope="session")
def script() -> Path:
    """The host that is a Python program."""
    return HOSTS / "host.py"


@pytest.fixture(scope="session")
def everything() -> str:
    """The policy that uses all published modules."""
    return f"{HOSTS / 'everything.py'}:Everything"


@pytest.fixture(scope="session")
def faulty() -> str:
    """The policy of policies.py."""
    return f"{HOSTS / 'policies.py'}:Faulty"


@functools.cache
def pythons() -> list[Path]:
    """One interpreter of every minor version from 3.10 on and of each build kind (with or without a shared library).

    From PATH, and from pyenv where that is installed. The one that runs the tests comes first.
    """
    candidates = [Path(sys.executable)]
    for minor in range(10, 20):
        for directory in os.get_exec_path():
            candidates += [Path(directory) / f"python3.{minor}"]
        if pyenv := shutil.which("pyenv"):
            root = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=30).stdout.strip()
            candidates += sorted(Path(root).glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
    found: dict[str, Path] = {}
    show = "import ctypes, sys, sysconfig; print(sys.version_info[:2], sysconfig.get_config_var('Py_ENABLE_SHARED'))"
    for candidate in candidates:
        if not candidate.is_file():
            continue
        try:
            result = subprocess.run([candidate, "-I", "-c", show], capture_output=True, text=True, timeout=30)
        except OSError:
            continue
        if result.returncode == 0:
            found.setdefault(result.stdout, candidate)
    return list(found.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "python" in metafunc.fixturenames:
        found = pythons()
        names = [f"{path.parent.parent.name}-{path.name}" for path in found]
        metafunc.parametrize("python", found, ids=names, scope="session")
