"""The shim is a guest: results and errno are the driver's, nothing is written to stdout, nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.sanitize
HOSTS = Path(__file__).parents[1] / "native" / "shim"
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "HOOKLAB_CONTEXT_BYTES": str(512 << 20)}


@pytest.mark.report("B115")
@pytest.mark.parametrize("limits", [LIMIT, {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "unset"}], ids=["limit", "nothing"])
def test_results_and_errno_are_the_drivers(
    lab, compile_c: Callable[..., Path], native: Path, limits: dict[str, str]
) -> None:
    link = (f"-L{native}/fake", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1")
    keeps = compile_c(HOSTS / "keeps.c", *link, name="keeps")
    bare, hooked = lab.run([keeps], preload=[]), lab.run([keeps], **limits)
    assert (bare.status, bare.err) == (hooked.status, hooked.err) == (0, "")
    assert hooked.said == bare.said
    assert [errno for _, errno in hooked.said[0]] == [77] * len(hooked.said[0])


@pytest.mark.report("B115", "B117")
def test_a_program_that_uses_no_gpu_sees_no_difference(lab) -> None:
    script = ["/bin/sh", "-c", "echo '[1]'; test -e \"$CUDA_DEVICE_MEMORY_SHARED_CACHE\" && echo '[2]'; true"]
    ended = lab.run(script, **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [[1]], "")
    assert len(lab.records("PHASE")) == 0


def test_a_reset_of_the_environment_comes_too_late(lab) -> None:
    """Limits are read once, before the first call: a program that changes its environment later changes nothing."""
    script = """
assert init() == 0
os.environ["CUDA_DEVICE_MEMORY_LIMIT"] = "40g"
retain()
say(info()[2])
"""
    assert lab.guest(script, **LIMIT).said == [4 << 30]
