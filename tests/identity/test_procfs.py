"""The NStgid parser and the guard, in C and in Python: one by one, and against each other."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.identity import namespaces
from lab.identity.endpoint import namespace_problem
from lab.identity.procfs import LEVELS, Nstgid, ProcfsError, host_pid, parse, shows_kernel_threads
from lab.spec import load_layout

IDENTITY = Path(__file__).parents[2] / "shim" / "identity"
REASON = {
    name.removeprefix("HL_REASON_"): value
    for name, value in load_layout("history").constants.items()
    if name.startswith("HL_REASON_")
}
initial_only = pytest.mark.skipif(
    bool(namespace_problem()) or not shows_kernel_threads(Path("/proc")),
    reason="no procfs of the machine's first PID namespace here",
)


class CParser:
    """hl_nstgid_parse through ctypes."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))

    def __call__(self, text: bytes | None, room: int) -> tuple[int, list[int]]:
        pids = (ctypes.c_uint32 * max(room, 1))()
        count = ctypes.c_size_t(99)
        size = ctypes.c_size_t(len(text or b""))
        result = self.library.hl_nstgid_parse(text, size, pids, ctypes.c_size_t(room), ctypes.byref(count))
        return result, list(pids[: count.value])


@pytest.fixture(scope="session")
def c_parse(compile_c: Callable[..., Path]) -> CParser:
    return CParser(compile_c(IDENTITY / "procfs.c", "-shared", "-fPIC", name="libprocfs.so"))


CASES = [
    (b"Name:\tx\nNStgid:\t8011\t1\nNSpid:\t1\n", 33, Nstgid.OK, [8011, 1]),
    (b"NStgid:\t6\n", 33, Nstgid.OK, [6]),
    (b"NStgid:\t2147483647\n", 33, Nstgid.OK, [2147483647]),
    (None, 33, Nstgid.NULL, []),
    (b"NStgid:\t6\n", 0, Nstgid.NO_ROOM, []),
    (b"NSpid:\t6\n", 33, Nstgid.NO_FIELD, []),
    (b"NStgidx:\t6\n", 33, Nstgid.NO_FIELD, []),
    (b" NStgid:\t6\n", 33, Nstgid.NO_FIELD, []),
    (b"nstgid:\t6\n", 33, Nstgid.NO_FIELD, []),
    (b"", 33, Nstgid.NO_FIELD, []),
    (b"NStgid:\n", 33, Nstgid.EMPTY, []),
    (b"NStgid:\t\n", 33, Nstgid.EMPTY, []),
    (b"NStgid:\t-6\n", 33, Nstgid.NOT_POSITIVE, []),
    (b"NStgid:\t0\n", 33, Nstgid.NOT_POSITIVE, []),
    (b"NStgid:\t-0\n", 33, Nstgid.NOT_POSITIVE, []),
    (b"NStgid:\t8011\t0\n", 33, Nstgid.NOT_POSITIVE, []),
    (b"NStgid:\t2147483648\n", 33, Nstgid.OVERFLOW, []),
    (b"NStgid:\t4294967297\n", 33, Nstgid.OVERFLOW, []),
    (b"NStgid:\t18446744073709551617\n", 33, Nstgid.OVERFLOW, []),
    (b"NStgid:\t99999999999999999999999999999999\n", 33, Nstgid.OVERFLOW, []),
    (b"NStgid:\t8011x\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t+8011\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t0x10\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t08011\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t8011 \n", 33, Nstgid.JUNK, []),
    (b"NStgid:8011\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t-\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t80\0" + b"11\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t8011", 33, Nstgid.JUNK, []),
    (b"NStgid:\t8011\r\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t8011\t1\nNStgid:\t6\n", 33, Nstgid.JUNK, []),
    (b"NStgid:\t1\t2\t3\n", 2, Nstgid.TOO_DEEP, []),
    (b"NStgid:" + b"\t7" * 34 + b"\n", 33, Nstgid.TOO_DEEP, []),
    (b"NStgid:" + b"\t7" * 33 + b"\n", 33, Nstgid.OK, [7] * 33),
]


@pytest.mark.parametrize(("text", "room", "problem", "pids"), CASES)
def test_both_parsers(c_parse: CParser, text: bytes | None, room: int, problem: Nstgid, pids: list[int]) -> None:
    assert parse(text, room) == (problem, pids)
    assert c_parse(text, room) == (problem, pids)


PARTS = b"NStgid:|NSpid:|\t| |\n|0|1|8011|2147483647|2147483648|-|+|x|\0|\r|00|99999999999999999999|\t80\t1\n"
WORDS = st.sampled_from(PARTS.split(b"|"))


@given(st.lists(WORDS, max_size=24).map(b"".join), st.integers(0, 4) | st.just(LEVELS))
@example(b"NStgid:\t1\t2\t", 2)
def test_the_parsers_agree(c_parse: CParser, text: bytes, room: int) -> None:
    assert parse(text, room) == c_parse(text, room)


@given(st.binary(max_size=200), st.integers(0, 4) | st.just(LEVELS))
def test_the_parsers_agree_on_anything(c_parse: CParser, text: bytes, room: int) -> None:
    text = b"NStgid:" + text
    assert parse(text, room) == c_parse(text, room)


def test_every_reason_has_words(compile_c: Callable[..., Path]) -> None:
    library = ctypes.CDLL(str(compile_c(IDENTITY / "reasons.c", "-shared", "-fPIC", name="libreasons.so")))
    library.hl_reason_text.restype = ctypes.c_char_p
    texts = [library.hl_reason_text(number) for number in range(REASON["COUNT"])]
    assert b"unknown" not in texts
    assert len(set(texts)) == REASON["COUNT"]
    assert library.hl_reason_text(REASON["COUNT"]) == library.hl_reason_text(-1) == b"unknown"


# -- the guard --
@pytest.fixture(scope="session")
def asker(compile_c: Callable[..., Path]) -> Path:
    sources = [IDENTITY / "broker.c", IDENTITY / "procfs.c"]
    return compile_c(
        Path(__file__).parents[1] / "native" / "identity" / "ask.c", f"-I{IDENTITY}", name="ask", extra=sources
    )


@pytest.fixture(scope="session")
def loose_asker(compile_c: Callable[..., Path]) -> Path:
    """Takes any directory for a procfs."""
    sources = [IDENTITY / "broker.c", IDENTITY / "procfs.c"]
    main = Path(__file__).parents[1] / "native" / "identity" / "ask.c"
    return compile_c(main, f"-I{IDENTITY}", "-DHL_PROCFS_ANY", name="ask-loose", extra=sources)


def ask_procfs(program: Path, root: Path | str, *before: str) -> tuple[int, int, int]:
    """(REASON, PID told, PID of the process that asked, as this namespace sees it)."""
    asking = subprocess.Popen([*before, program, "procfs", str(root)], stdout=subprocess.PIPE, text=True)
    out, _ = asking.communicate(timeout=30)
    reason, told, _ns = map(int, out.split())
    return reason, told, asking.pid


@initial_only
def test_the_host_itself(asker: Path) -> None:
    reason, told, pid = ask_procfs(asker, "/proc")
    assert (reason, told) == (REASON["ANSWERED"], pid)
    assert host_pid(Path("/proc")) == os.getpid()


@pytest.mark.parametrize("kind", namespaces.KINDS, ids=lambda kind: kind.words)
@initial_only
def test_the_hosts_procfs_in_a_namespace(kind: namespaces.Kind) -> None:
    """The mount of the machine's first namespace, seen from below: the PID is the outermost one."""
    try:
        told, truth = namespaces.ask_in(kind, lambda: host_pid(Path("/proc")))
        assert told == truth
    except namespaces.Forbidden as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("levels", [1, 2])
def test_a_private_procfs_is_refused(asker: Path, tmp_path: Path, levels: int) -> None:
    """A container's own procfs, and that of the container around it: right-looking, wrong."""
    mount = tmp_path / "proc"
    mount.mkdir()
    inner = f"exec {asker} procfs {mount}"
    if levels == 2:
        inner = f"exec unshare --pid --fork {asker} procfs {mount}"
    command = ["unshare", "--pid", "--mount", "--fork", "sh", "-c", f"mount -t proc proc {mount} && {inner}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine makes no private procfs: {done.stderr.strip()}")
    reason, told, _ns = map(int, done.stdout.split())
    assert told == 0
    assert reason in (REASON["PRIVATE_PROCFS"], REASON["UNPROVEN"])  # whether it shows a process 2 is chance


def test_the_python_guard_refuses_a_private_procfs(tmp_path: Path) -> None:
    mount, script = tmp_path / "proc", tmp_path / "ask.py"
    mount.mkdir()
    script.write_text(
        f"from lab.identity.procfs import host_pid; from pathlib import Path\nhost_pid(Path({str(mount)!r}))\n"
    )
    ask = f"mount -t proc proc {mount} && {sys.executable} -P {script}"
    command = ["unshare", "--pid", "--mount", "--fork", "sh", "-c", ask]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine makes no private procfs: {done.stderr.strip()}")
    assert "belongs to a private PID namespace" in done.stderr


def test_a_directory_is_no_procfs(asker: Path, tmp_path: Path) -> None:
    assert ask_procfs(asker, tmp_path)[:2] == (REASON["NOT_PROCFS"], 0)
    assert ask_procfs(asker, tmp_path / "none")[:2] == (REASON["NOT_PROCFS"], 0)
    assert ask_procfs(asker, "proc")[:2] == (REASON["BAD_GATE"], 0)


class FakeProc:
    """A directory that looks like a procfs: PID 2 and self."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "2").mkdir(parents=True)
        self.kernel(2129984)
        (root / "self").mkdir()

    def kernel(self, flags: int, parent: int = 0, name: str = "kthreadd") -> None:
        (self.root / "2" / "stat").write_text(f"2 ({name}) S {parent} 0 0 0 -1 {flags} 0 0\n")

    def status(self, line: str) -> None:
        (self.root / "self" / "status").write_text(f"Name:\tx\nTgid:\t6\n{line}")

    def ask(self, program: Path) -> tuple[int, int, int]:
        """The asker's own PID replaces SELF in the status, so it is started by a shell that writes it."""
        template = (self.root / "self" / "status").read_text()
        (self.root / "template").write_text(template)
        script = f"sed s/SELF/$$/ {self.root}/template > {self.root}/self/status; exec {program} procfs {self.root}"
        asking = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        out, _ = asking.communicate(timeout=30)
        reason, told, _ns = map(int, out.split())
        return reason, told, asking.pid


@pytest.fixture
def fake_proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("NStgid:\t8011\tSELF\n", "ANSWERED"),
        ("", "NO_FIELD"),  # a sandbox whose kernel is not Linux says nothing of levels
        ("NStgid:\t-1\tSELF\n", "MALFORMED"),
        ("NStgid:\n", "MALFORMED"),
        ("NStgid:\t8011\tSELF", "MALFORMED"),
        ("NStgid:\t99999999999\tSELF\n", "MALFORMED"),
        ("NStgid:" + "\t9" * 33 + "\tSELF\n", "TOO_DEEP"),
        ("NStgid:\t8011\t1\n", "OTHER_PROCESS"),
        ("NStgid:\tSELF\n", "MALFORMED"),  # one level although we live below that mount's namespace
    ],
)
def test_what_a_status_says(fake_proc: FakeProc, loose_asker: Path, line: str, reason: str) -> None:
    fake_proc.status(line)
    got, told, _pid = fake_proc.ask(loose_asker)
    assert (got, told) == (REASON[reason], 8011 if reason == "ANSWERED" else 0)


@pytest.mark.parametrize(
    ("flags", "parent", "name", "reason"),
    [
        (2129984, 0, "kthreadd", "ANSWERED"),
        (4194304, 0, "kthreadd", "PRIVATE_PROCFS"),  # any process may call itself so
        (2129984, 1, "kthreadd", "PRIVATE_PROCFS"),
        (2129984, 0, "a) S 0 0 0 (b", "ANSWERED"),
    ],
)
def test_only_a_kernel_thread_proves_the_first_namespace(
    fake_proc: FakeProc, loose_asker: Path, flags: int, parent: int, name: str, reason: str
) -> None:
    fake_proc.status("NStgid:\t8011\tSELF\n")
    fake_proc.kernel(flags, parent, name)
    assert fake_proc.ask(loose_asker)[0] == REASON[reason]


def test_without_process_2_nothing_is_proven(fake_proc: FakeProc, loose_asker: Path) -> None:
    (fake_proc.root / "2" / "stat").unlink()
    fake_proc.status("NStgid:\t8011\tSELF\n")
    assert fake_proc.ask(loose_asker)[:2] == (REASON["UNPROVEN"], 0)
    fake_proc.status("NStgid:\tSELF\n")
    assert fake_proc.ask(loose_asker)[:2] == (REASON["PRIVATE_PROCFS"], 0)


def test_the_python_guard_on_the_same(fake_proc: FakeProc) -> None:
    fake_proc.status(f"NStgid:\t8011\t{os.getpid()}\n")
    assert host_pid(fake_proc.root) == 8011
    fake_proc.status("NStgid:\t8011\t1\n")
    with pytest.raises(ProcfsError, match="is not this process"):
        host_pid(fake_proc.root)
    fake_proc.status(f"NStgid:\t{os.getpid()}\n")
    with pytest.raises(ProcfsError, match="one level"):
        host_pid(fake_proc.root)
    fake_proc.kernel(4194304)
    with pytest.raises(ProcfsError, match="private PID namespace"):
        host_pid(fake_proc.root)
    (fake_proc.root / "self" / "status").unlink()
    with pytest.raises(ProcfsError, match="mount the host's procfs"):
        host_pid(fake_proc.root)
