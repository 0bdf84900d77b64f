"""Who meets whom on one region file: older and newer writers, monitors with longer files, other layouts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.region import HamiRegion, Region, RegionError, is_hami
from lab.spec import load_layout

Run = Callable[..., subprocess.CompletedProcess[str]]
LAYOUT = load_layout("hami-1.2")


@pytest.fixture
def region(passes: Run, tmp_path: Path) -> Path:
    passes("members", 3)
    return tmp_path / "region"


def change(path: Path, field: str, value: int) -> None:
    data = bytearray(path.read_bytes())
    record = np.frombuffer(data, LAYOUT.dtype("hl_hami_region"), 1)
    record[field][0] = value
    path.write_bytes(data)


def test_a_newer_monitors_longer_file_is_used_as_it_is(run_region: Run, region: Path) -> None:
    """Outcome: the first 2,008,952 bytes are the region; the rest is left alone; `check` says that the size differs."""
    with region.open("ab") as stream:
        stream.write(b"new" * 1000)
    assert run_region("members", 2).returncode == 0
    assert region.read_bytes().endswith(b"new")
    assert any("bytes, a file of layout hami-1.2 has 2008953" in one for one in HamiRegion(region).check())


def test_an_older_writers_shorter_file_is_refused(run_region: Run, region: Path) -> None:
    """Outcome: an error; nothing is grown or written, and a reader says the same."""
    before = region.read_bytes()[:1_000_000]
    region.write_bytes(before)
    done = run_region("members", 1)
    assert done.returncode != 0
    assert region.read_bytes() == before
    with pytest.raises(RegionError, match="too short"):
        HamiRegion(region)


@pytest.mark.report("B107", plants="a version or layout of another build")
@pytest.mark.parametrize(("field", "value"), [("major", 2), ("minor", 1), ("minor", 3)])
def test_versions_that_disagree_are_refused(run_region: Run, region: Path, field: str, value: int) -> None:
    """Outcome: an error of the opener (HAMi only logs it and goes on); readers still read and say which version."""
    change(region, field, value)
    before = region.read_bytes()
    assert run_region("members", 1).returncode != 0
    assert region.read_bytes() == before
    assert any("this build knows 1.2" in one for one in HamiRegion(region).check())


def test_a_maker_that_was_killed_leaves_a_file_that_the_next_one_makes(run_region: Run, region: Path) -> None:
    change(region, "magic", 0)
    change(region, "proc_count", 0)
    assert run_region("members", 4).returncode == 0
    assert HamiRegion(region).holder() == "free"


def test_layouts_do_not_take_each_other_for_their_own(run_region: Run, passes: Run, tmp_path: Path) -> None:
    path = tmp_path / "region"
    passes("members", 1)
    with pytest.raises(RegionError, match="HAMi"):
        Region.open(path)
    path.unlink()
    passes("crowd", "race", 2)
    before = path.read_bytes()
    assert run_region("members", 1).returncode != 0
    assert path.read_bytes() == before
    assert not is_hami(path)


def test_a_live_reader_sees_no_torn_slot_of_one_writer(region_program: Callable[[str], Path], tmp_path: Path) -> None:
    with subprocess.Popen(
        [region_program("torn"), tmp_path, "write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        seen = set()
        for _ in range(300):
            slot = HamiRegion(tmp_path / "region").record["procs"][0]
            assert int(slot["sequence"]) % 2 == 0
            used = slot["used"][0]
            assert int(used["total"]) == int(used["data"])
            seen.add(int(used["total"]))
        assert seen == {0, 1 << 20}  # the writer was at work
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait(30) == 0
