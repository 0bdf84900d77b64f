"""Crowds in real PID namespaces: every answer is the PID that the outermost namespace sees, and the paths add up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.identity.client import ask
from lab.identity.endpoint import namespace_problem
from lab.identity.procfs import parse
from lab.identity.protocol import ProtocolError
from lab.spec import load_layout

IDENTITY = Path(__file__).parents[2] / "shim" / "identity"
ASK = Path(__file__).parents[1] / "native" / "identity" / "ask.c"
CONSTANTS = load_layout("history").constants
ANSWERED = CONSTANTS["HL_REASON_ANSWERED"]
pytestmark = pytest.mark.skipif(bool(namespace_problem()), reason="the outermost PID namespace is out of sight here")


@pytest.fixture(scope="session")
def asker(compile_c: Callable[..., Path]) -> Path:
    """With the place that is compiled into the product."""
    sources = [IDENTITY / "broker.c", IDENTITY / "procfs.c"]
    return compile_c(ASK, f"-I{IDENTITY}", name="ask-product", extra=sources)


def outer_pids(parent: int) -> dict[int, int]:
    """Innermost PID -> outermost PID of every process below `parent`, from the machine's procfs."""
    found: dict[int, int] = {}
    todo = [parent]
    while todo:
        pid = todo.pop()
        levels = parse(Path(f"/proc/{pid}/status").read_bytes())[1]
        found[levels[-1]] = levels[0]
        todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def deepest(pid: int) -> int:
    """The last of a chain of only children."""
    while True:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(below) != 1:
            return pid
        pid = int(below[0])


def crowd(command: list[str]) -> tuple[list[tuple[int, int, int, int]], dict[int, int]]:
    """(inner PID, reason, PID told, ns) of each asker, and the truth while all of them live."""
    asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    rows = []
    for line in asking.stdout:
        if line == "end\n":
            break
        inner, reason, told, ns = map(int, line.split())
        rows.append((inner, reason, told, ns))
    truth = outer_pids(deepest(asking.pid)) if rows else {}
    _, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    return rows, truth


@pytest.mark.report("B113")
@pytest.mark.parametrize("inside", ["host", "private", "nested twice", "user"])
def test_three_hundred_at_once(identity: object, serve: Callable[..., object], asker: Path, inside: str) -> None:
    serving = serve("--metrics", "127.0.0.1:0", socket=identity.socket)
    program = shutil.copy(asker, identity.locks / "ask")  # where every user can read it
    command = identity.command([program, "crowd", "300"], place=inside, read_only=inside == "user")
    rows, truth = crowd(command)
    assert len(rows) == 300
    assert [row[1] for row in rows] == [ANSWERED] * 300
    assert {inner: told for inner, _reason, told, _ns in rows} == {inner: truth[inner] for inner, *_ in rows}
    assert len({told for _inner, _reason, told, _ns in rows}) == 300
    assert serving.stop() == "stopped: 300 accepted, 300 answered, 0 left"


def test_a_user_namespace_trusts_only_a_read_only_mount(
    identity: object, serve: Callable[..., object], asker: Path
) -> None:
    """Root and everybody else outside look the same in there; but who can make a directory cannot mount it so.

    Where the own root is called 0 as well nothing proves which one a directory belongs to.
    """
    serve(socket=identity.socket)
    program = shutil.copy(asker, identity.locks / "ask")
    for inside, read_only in (("user", False), ("root's user", False), ("root's user", True)):
        rows, _ = crowd(identity.command([program, "crowd", "3"], place=inside, read_only=read_only))
        assert {row[1:3] for row in rows} == {(CONSTANTS["HL_REASON_DIRECTORY_OWNER"], 0)}


def test_three_hundred_through_the_hosts_procfs(identity: object, asker: Path) -> None:
    rows, truth = crowd(identity.command([asker, "crowd", "300", "/proc"], place="nested twice"))
    assert len(rows) == 300
    assert all(reason == ANSWERED and told == truth[inner] for inner, reason, told, _ns in rows)


def test_a_broker_in_a_container_refuses_to_serve(serve: Callable[..., object], place: Path) -> None:
    """Its PIDs would be those of its own namespace: right-looking and wrong."""
    code = "import sys; from lab.cli import main; sys.exit(main())"
    words = [sys.executable, "-P", "-c", code, "broker", "serve", "--socket", str(place / "d" / "s")]
    done = subprocess.run(["unshare", "--pid", "--fork", *words], capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 2
    assert "are not the ones NVML reports" in done.stderr
    assert not (place / "d").exists()


def test_a_caller_from_above_is_not_named(serve: Callable[..., object], identity: object, place: Path) -> None:
    """A broker inside a namespace does not see who connects from outside: no PID, not zero, not another's."""
    code = "import sys; from lab.cli import main; sys.exit(main())"
    words = [sys.executable, "-P", "-c", code, "broker", "serve", "--any-namespace", "--socket", str(place / "d" / "s")]
    inside = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert inside.stdout is not None
        assert inside.stdout.readline().startswith("ready")
        with pytest.raises(ProtocolError, match="0 bytes"):
            ask(place / "d" / "s", patience_s=5)
    finally:
        inside.kill()
        inside.communicate()
