"""The container tool by itself, as an unprivileged user too: mounts, PIDs, exit statuses, descriptors, death."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.runner.container import probe_isolation

NOBODY = 65534
pytestmark = [
    pytest.mark.sanitize,
    pytest.mark.skipif(bool(probe_isolation()), reason="this machine allows no containers"),
]


class Box:
    """One container held by the tool; `run` enters it."""

    def __init__(self, tool: Path, scratch: Path, lines: list[str], *, user: int | None) -> None:
        self.tool, self.user = tool, user
        spec = scratch / "spec"
        spec.write_text("\n".join(lines) + "\n")
        reading, writing = os.pipe()
        self.holder = subprocess.Popen(
            [tool, "init", "--spec", spec, "--report", str(writing), "--pid-namespace"], pass_fds=[writing], user=user
        )
        os.close(writing)
        with os.fdopen(reading) as report:
            self.answers = report.read().splitlines()
        self.init = next((line.split()[1] for line in self.answers if line.startswith("pid")), "")
        self.in_user_namespace = any(line.endswith(" user") for line in self.answers)

    def enter(self, *command: str, **options: object) -> list[str]:
        inside = ["--of", self.init, "--pid-namespace", *(["--user"] if self.in_user_namespace else [])]
        return [
            str(self.tool),
            "enter",
            *inside,
            *(str(part) for pair in options.items() for part in pair),
            "--",
            *command,
        ]

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.enter("sh", "-c", text), capture_output=True, text=True, check=False, user=self.user, timeout=30
        )

    def stop(self) -> None:
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.init), signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own belong to one."""
    folder = Path(tempfile.mkdtemp(prefix="hooklab-box-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["self", "nobody"])
def box(request: pytest.FixtureRequest, native: Path, scratch: Path) -> Iterator[Box]:
    user = None
    if request.param == "nobody":
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        user = NOBODY
    tool = shutil.copy(native / "hooklab-box", scratch / "tool")
    for name in ("tmp", "shared", "vgpu"):
        (scratch / name).mkdir()
        (scratch / name).chmod(0o777)
    (scratch / "file").write_text("original\n")
    lines = [
        f"keep {scratch}",
        "mirror /usr/local",
        f"bind {scratch}/vgpu /usr/local/vgpu rw",
        f"bind {scratch}/file /usr/local/vgpu/file ro",
        "mirror /etc",
        f"bind {scratch}/file /etc/hooklab%20test ro",
        f"cover {scratch}/tmp /tmp",
        f"bind {scratch}/shared /tmp/shared rw",
        "proc",
    ]
    made = Box(Path(tool), scratch, lines, user=user)
    if user is not None and "ready" not in made.answers:
        made.stop()
        pytest.skip(f"this machine gives users no namespaces: {made.answers}")
    yield made
    made.stop()


def test_mounts(box: Box, scratch: Path) -> None:
    seen = box.run(
        "cat '/etc/hooklab test'; ls /tmp; echo new >/tmp/shared/new; test -d /usr/local/bin && echo bin;"
        f"cat {scratch}/file; echo x 2>/dev/null >/usr/local/vgpu/file || echo read-only; grep -c ^root: /etc/passwd"
    )
    # /tmp shows what is kept (this folder) and what is mounted, nothing else of the machine's
    assert seen.stdout.split() == ["original", scratch.name, "shared", "bin", "original", "read-only", "1"]
    assert (scratch / "shared" / "new").read_text() == "new\n"
    assert (scratch / "file").read_text() == "original\n"
    assert not Path("/etc/hooklab test").exists()


def test_pids_and_identity(box: Box) -> None:
    assert box.run("echo $$; id -u").stdout.split() == ["2", str(os.geteuid() if box.user is None else NOBODY)]
    assert box.run("echo $$").stdout.split() == ["4"]  # id was 3: PIDs count on inside


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
def test_ends_as_the_program_ends(box: Box, text: str, code: int) -> None:
    assert box.run(text).returncode == code


def test_commands_that_cannot_start(box: Box, scratch: Path) -> None:
    def code(name: str) -> int:
        return subprocess.run(box.enter(name), check=False, user=box.user, stderr=subprocess.DEVNULL).returncode

    assert code(f"{scratch}/no-such-command") == 127
    assert code("/etc") == 126


def test_orphans_are_reaped_and_die_with_the_container(box: Box) -> None:
    reading, writing = os.pipe()
    code = f"(sleep 1000 & echo $! >&{writing}) ; exit 0"
    done = subprocess.run(box.enter("bash", "-c", code), pass_fds=[writing], check=False, user=box.user)
    os.close(writing)
    assert done.returncode == 0
    box.stop()
    with os.fdopen(reading) as stream:  # its end comes only when the orphan, which holds the other end, is gone
        assert select.select([stream], [], [], 20)[0]
        assert stream.read().strip().isdigit()


def test_the_control_channel_ends_with_the_program(box: Box) -> None:
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    guest = subprocess.Popen(box.enter("bash", "-c", f"read x <&{number}; exit 3"), pass_fds=[number], user=box.user)
    theirs.close()
    ours.sendall(b"go\n")
    assert ours.recv(10) == b""
    assert guest.wait() == 3


def test_hold_waits_for_the_word(native: Path) -> None:
    ours, theirs = socket.socketpair()
    number = str(theirs.fileno())
    guest = subprocess.Popen(
        [native / "hooklab-box", "enter", "--hold", number, "--", "sh", "-c", "exit 5"], pass_fds=[int(number)]
    )
    theirs.close()
    assert ours.recv(100) == b"ready\n"
    assert guest.poll() is None
    ours.sendall(b"go\n")
    assert guest.wait() == 5


def test_the_environment_is_exactly_the_file(native: Path, tmp_path: Path) -> None:
    file = tmp_path / "environment"
    file.write_bytes(b"ONE=1\0TWO=a b\0PATH=/usr/bin:/bin\0")
    done = subprocess.run(
        [native / "hooklab-box", "enter", "--environment", file, "--", "env"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split("\n")) == ["", "ONE=1", "PATH=/usr/bin:/bin", "TWO=a b"]


def test_a_bad_spec_is_one_line(native: Path, scratch: Path) -> None:
    tool = native / "hooklab-box"
    for line, words in (
        ("bind /no/such/thing /tmp/x ro", "No such file"),
        ("dance /tmp", "no operation dance"),
        ("mirror /no/such/folder", "No such file"),
    ):
        box = Box(tool, scratch, [line], user=None)
        try:
            (error,) = [answer for answer in box.answers if answer.startswith("error")]
            assert words in error
        finally:
            box.stop()
