"""Where a process hangs: what the kernel says of each of its threads, and gdb's view when gdb is here."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

GDB_PATIENCE_S = 30


def backtrace(pid: int, *, frames: bool = True) -> str:
    """Text about a living process (host PID). Never raises; says what could not be had. ``frames``: ask gdb too."""
    parts = [_kernel_view(pid)]
    if not frames:
        return parts[0]
    gdb = shutil.which("gdb")
    if gdb is None:
        parts.append("gdb is not installed: no frames")
    else:
        parts.append(_frames(gdb, pid))
    return "\n".join(parts)


def _kernel_view(pid: int) -> str:
    lines = [f"process {pid}: {_read(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()}"]
    with contextlib.suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            state = next((line for line in _read(task / "status").splitlines() if line.startswith("State")), "")
            where = _read(task / "wchan") or "?"
            lines.append(
                f"thread {task.name} ({_read(task / 'comm').strip()}): {state}; waits in {where}; "
                f"syscall {_read(task / 'syscall').split(' ')[0].strip() or '?'}"
            )
            stack = _read(task / "stack").strip()
            if stack:
                lines.extend(f"  {line}" for line in stack.splitlines())
    objects = {line.split(None, 5)[5] for line in _read(f"/proc/{pid}/maps").splitlines() if line.count("/")}
    lines.extend(f"object {name}" for name in sorted(objects))
    return "\n".join(lines)


def _frames(gdb: str, pid: int) -> str:
    command = [
        gdb, "-batch", "-nx", "-p", str(pid),
        "-ex", "set pagination off", "-ex", "set debuginfod enabled off", "-ex", "thread apply all backtrace 40",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=GDB_PATIENCE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"gdb did not answer in {GDB_PATIENCE_S} s"
    except OSError as error:
        return f"gdb: {error}"
    return done.stdout if "#0" in done.stdout else done.stdout + done.stderr


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
