"""The sanitizer runs can see what they are for: a planted overflow and a planted undefined shift must be caught.

The planted library is loaded by an unsanitized program through LD_PRELOAD, the way the natives are under test.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.codegen import compiler as cc
from lab.codegen.build import SANITIZERS, _runtime

pytestmark = pytest.mark.sanitize

PLANTED = """#include <stdlib.h>
__attribute__((constructor)) static void run(void) {
    volatile char *block = malloc(16);
    volatile int index = %d, shift = %d, one = 1;
    block[index] = 1;
    one = one << shift;
    free((void *)block);
}
"""


def preload(library: Path, *, runtime: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    chain = ":".join(part for part in (runtime, str(library)) if part)
    return subprocess.run(
        ["/bin/true"], env={**kept, "LD_PRELOAD": chain, **variables}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _runtime(cc.find(tmp_path_factory.mktemp("probe")), "address")


def test_address_catches_the_planted_overflow(compile_c: Callable[..., Path], runtime: str) -> None:
    flags = ("-shared", "-fPIC", *SANITIZERS["address"])
    options = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99"}
    bad = preload(compile_c(PLANTED % (16, 1), *flags, name="asan-bad.so"), runtime=runtime, **options)
    assert bad.returncode == 99
    assert "heap-buffer-overflow" in bad.stderr
    good = preload(compile_c(PLANTED % (15, 1), *flags, name="asan-good.so"), runtime=runtime, **options)
    assert (good.returncode, good.stderr) == (0, "")


def test_undefined_catches_the_planted_shift(compile_c: Callable[..., Path]) -> None:
    flags = ("-shared", "-fPIC", *SANITIZERS["undefined"])
    bad = preload(compile_c(PLANTED % (15, 40), *flags, name="ubsan-bad.so"), runtime="")
    assert bad.returncode != 0
    assert "shift exponent 40 is too large" in bad.stderr
    good = preload(compile_c(PLANTED % (15, 3), *flags, name="ubsan-good.so"), runtime="")
    assert (good.returncode, good.stderr) == (0, "")


def test_the_natives_under_test_are_the_ones_asked_for(native: Path) -> None:
    """A sanitizer run over plain natives would be green for nothing."""
    info = json.loads((native / "build.json").read_text())
    assert info["sanitize"] == os.environ.get("HOOKLAB_SANITIZE", "")
    for library in ("libhooklab-region.so", "fake/libcuda.so.1"):
        instrumented = b"__asan_init" in (native / library).read_bytes()
        assert instrumented == (info["sanitize"] == "address")
