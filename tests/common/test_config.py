"""Configuration of a guest: sizes, environment, the container's file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Compile = Callable[..., Path]
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "hooklab.conf"


@pytest.fixture(scope="module")
def settings(compile_c: Compile, root: Path, file: Path) -> Path:
    return compile_c(
        root / "tests/native/common/settings.c",
        f'-DHL_CONFIG_FILE="{file}"',
        name="settings",
        extra=[root / "shim/common/config.c"],
    )


def ask(program: Path, *arguments: str, **environment: str) -> list[str]:
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.report("B130")
@pytest.mark.parametrize(
    ("text", "state", "value"),
    [
        ("0", 0, 0),
        ("1024", 0, 1024),
        ("100b", 0, 100),
        ("3k", 0, 3 * KIB),
        ("1024m", 0, GIB),
        ("1024MB", 0, GIB),
        ("4GiB", 0, 4 * GIB),
        ("4 gib", 0, 4 * GIB),
        ("2T", 0, 2 * TIB),
        (" 7g\n", 0, 7 * GIB),
        ("18446744073709551615", 0, 2**64 - 1),
        ("", 1, 0),
        ("   ", 1, 0),
        ("18446744073709551616", -1, 0),
        ("17179869184g", -1, 0),
        ("-1", -1, 0),
        ("1.5g", -1, 0),
        ("g", -1, 0),
        ("5ib", -1, 0),
        ("4gi", -1, 0),
        ("4gx", -1, 0),
        ("0x10", -1, 0),
        ("4g 4g", -1, 0),
    ],
)
def test_sizes(settings: Path, text: str, state: int, value: int) -> None:
    assert ask(settings, "size", text) == [f"{state} {value}"]


def test_the_environment_comes_before_the_file(settings: Path, file: Path) -> None:
    file.write_text(
        "# comment\nONE = from file \nTWO=\nTHREE=old\r\nTHREE=new\nONEMORE=no\nEMPTY=file\nLAST=cut", "utf-8"
    )
    seen = ask(settings, "get", "ONE", "TWO", "THREE", "FOUR", "EMPTY", "LAST", "MORE", EMPTY="", FOUR="environment")
    assert seen == ["=from file", "=", "=new", "=environment", "=", "=cut", "unset"]


def test_an_absent_file_is_no_error(settings: Path, file: Path) -> None:
    file.unlink(missing_ok=True)
    assert ask(settings, "get", "ONE", ONE="1") == ["=1"]
    assert ask(settings, "get", "ONE") == ["unset"]


def test_keys_are_found_by_their_beginning_once(settings: Path, file: Path) -> None:
    file.write_text("# LIMIT_no=1\nLIMIT_b = 2\nLIMIT_a=3\nLIMIT\nOTHER_LIMIT_c=4\n LIMIT_d=5", "utf-8")
    seen = ask(settings, "each", "LIMIT_", LIMIT_a="1", LIMIT_e="", LIMIT="1")
    assert sorted(seen) == ["LIMIT_a", "LIMIT_b", "LIMIT_d", "LIMIT_e"]


def test_a_file_too_long_counts_up_to_its_last_whole_line(settings: Path, file: Path) -> None:
    file.write_text("FIRST=1\n" + "FILLER=x\n" * 2000 + "BEYOND=1\n", "utf-8")
    assert ask(settings, "get", "FIRST", "BEYOND") == ["=1", "unset"]


def test_more_than_fits_is_still_answered(settings: Path) -> None:
    long = {f"KEY{i}": str(i) * 4000 for i in range(10)}
    assert ask(settings, "get", *long, **long) == [f"={value}" for value in long.values()]
    many = {f"K{i}": str(i) for i in range(300)}
    done = subprocess.run([settings, "get", *many], env=many, capture_output=True, text=True, check=False)
    # beyond the table nothing is remembered, so the answer follows the environment: the program says so by its status
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 257


def test_errno_and_threads_are_left_alone(compile_c: Compile, root: Path) -> None:
    source = """
        #include "config.h"
        #include <errno.h>
        #include <pthread.h>
        #include <string.h>
        static void *ask(void *out) { *(const char **)out = hl_config("SHARED"); return 0; }
        int main(void) {
            pthread_t thread[8];
            const char *seen[8];
            errno = 77;
            hl_config("MISSING");
            if (errno != 77) return 1;
            for (int i = 0; i < 8; i++) pthread_create(&thread[i], 0, ask, &seen[i]);
            for (int i = 0; i < 8; i++) pthread_join(thread[i], 0);
            for (int i = 0; i < 8; i++) if (seen[i] != seen[0] || strcmp(seen[i], "yes")) return 2;
            return 0;
        }
    """
    program = compile_c(source, name="config_threads", extra=[root / "shim/common/config.c"])
    subprocess.run([program], env={**os.environ, "SHARED": "yes"}, check=True)
