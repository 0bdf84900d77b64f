"""The C compiler: found, probed, and run incrementally.

An object is rebuilt when its command or a file it read changed.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.codegen._write import write_text
from lab.codegen.failure import BuildError


@dataclass(frozen=True, slots=True)
class Compiler:
    """A working C compiler."""

    command: tuple[str, ...]
    version: str
    """First line of --version."""


def find(temp: Path) -> Compiler:
    """$CC, else cc, gcc or clang; proves that it compiles and links a program."""
    candidates = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for candidate in candidates:
        command = tuple(shlex.split(candidate))
        try:
            done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            compiler = Compiler(command, done.stdout.partition("\n")[0].strip())
            _probe(compiler, temp)
            return compiler
    raise BuildError(
        f"no C compiler ({' or '.join(candidates)}): install gcc (Debian: apt-get install gcc libc6-dev), or set CC"
    )


def _probe(compiler: Compiler, temp: Path) -> None:
    temp.mkdir(parents=True, exist_ok=True)
    source, program = temp / "probe.c", temp / "probe"
    write_text(source, "#include <pthread.h>\n#include <stdio.h>\nint main(void) { return 0; }\n")
    done = subprocess.run(
        [*compiler.command, "-pthread", str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        cause = next((line for line in done.stderr.splitlines() if "error" in line), "it cannot link a program")
        raise BuildError(
            f"{compiler.command[0]} does not work ({cause.strip()}): install libc6-dev (Debian) or glibc-devel"
        )


def compile_all(
    compiler: Compiler, sources: Sequence[tuple[Path, str]], flags: Sequence[str], objects: Path
) -> list[Path]:
    """Compile sources (path, name of the object) in parallel; returns the objects in order."""
    objects.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(lambda item: _compile(compiler, item[0], flags, objects / f"{item[1]}.o"), sources))


def _compile(compiler: Compiler, source: Path, flags: Sequence[str], target: Path) -> Path:
    depends = target.with_suffix(".d")
    command = [*compiler.command, *flags, "-MMD", "-MF", str(depends), "-c", str(source), "-o", str(target)]
    stamp = target.with_suffix(".cmd")
    text = compiler.version + "\n" + shlex.join(command)
    if _fresh(target, depends, stamp, text):
        return target
    stamp.unlink(missing_ok=True)
    run(command, f"{source} does not compile")
    write_text(stamp, text)
    return target


def _fresh(target: Path, depends: Path, stamp: Path, text: str) -> bool:
    try:
        if stamp.read_text(encoding="utf-8") != text:
            return False
        made = target.stat().st_mtime_ns
        inputs = re.split(
            r"(?<!\\)\s+", depends.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2].strip()
        )
        return all(os.stat(name.replace("\\ ", " ")).st_mtime_ns < made for name in inputs if name)
    except OSError:
        return False


def run(command: Sequence[str], failure: str) -> str:
    """Run a tool; on failure its own messages go to stderr and the one line becomes the BuildError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{failure}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        sys.stderr.write(done.stderr)
        cause = next(
            (line for line in done.stderr.splitlines() if re.search(r"error|undefined|cannot find", line)), "see above"
        )
        raise BuildError(f"{failure}: {cause.strip()}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return done.stdout
