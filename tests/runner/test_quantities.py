"""Reports of runs give physical, limit, ledger and observed memory by process and device, and name a planted gap."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

MIB = 1 << 20
TEXT = """\
name: two moments
containers:
  tenant:
    limits: {memory: 4GiB}
    processes:
      - name: worker
        steps:
          - init
          - context: retain
          - call: {name: cuMemPoolCreate, with: [{out: own}, {struct: {0: 1, 8: 1, 12: 0}, size: 88}]}
          - call: {name: cuMemAllocFromPoolAsync, with: [{out: x}, 1MiB, own, null]}
          - alloc: {bytes: 100MiB, as: plain}
          - barrier: full
          - free: plain
"""


@pytest.fixture
def report(
    hooklab: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> Callable[..., tuple[list[dict], str, Path]]:
    """Runs a scenario text; the quantities of its report, its text, its run directory."""

    def make(text: str, *more: str) -> tuple[list[dict], str, Path]:
        file = tmp_path / "x.yaml"
        file.write_text(text)
        done = hooklab("run", str(file), "--out", str(tmp_path / "runs"), "--json", *more)
        (run,) = json.loads(done.stdout)["runs"]
        shown = hooklab("report", run["directory"], "--plot", str(tmp_path / "memory.svg")).stdout
        return run["quantities"], shown, tmp_path / "memory.svg"

    return make


def by_moment(rows: Sequence[dict]) -> dict[str, dict]:
    return {row["at"]: row for row in rows}


def test_all_four_at_the_peak_a_barrier_and_the_end(report) -> None:
    rows, shown, picture = report(TEXT)
    found = by_moment(rows)
    assert set(found) == {"peak", "barrier full", "end"}
    for at in ("peak", "barrier full"):
        row = found[at]
        assert row["physical"] == row["ledger"] >= 132 * MIB
        assert (row["process"], row["device"], row["limit"], row["gaps"]) == ("worker", 0, 4 << 30, [])
        assert row["observed"] == row["physical"]
    assert (found["end"]["physical"], found["end"]["ledger"], found["end"]["observed"]) == (0, 0, 0)
    for word in ("physical", "limit", "ledger", "observed", "gap", "barrier full", "peak"):
        assert word in shown
    drawn = ET.fromstring(picture.read_text())
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 3


def test_a_planted_gap_is_named(report, planted: Callable[[str], Path]) -> None:
    """An interposer that does not charge what pools hold."""
    text = TEXT.replace("    limits:", f"    environment: {{LD_PRELOAD: {planted('POOL_FREE')}}}\n    limits:")
    rows, shown, _ = report(text)
    found = by_moment(rows)
    for at in ("peak", "barrier full"):
        (gap,) = found[at]["gaps"]
        assert gap.startswith("async: 32.0 MiB held and not booked (pool idle")
        assert found[at]["physical"] - found[at]["ledger"] == 32 * MIB
    assert "barrier full, GPU 0, worker: async: 32.0 MiB held and not booked" in shown


def test_a_context_that_nobody_counts_is_named(report) -> None:
    text = TEXT.replace("    limits:", '    environment: {HOOKLAB_CONTEXT_BYTES: "0"}\n    limits:')
    (gap,) = by_moment(report(text)[0])["barrier full"]["gaps"]
    assert gap.startswith("context: ")
    assert "1 of" in gap


def test_without_an_interposer_the_ledger_is_unknown(report) -> None:
    rows, shown, _ = report(TEXT, "--interposer", "none")
    assert all(row["ledger"] is None and not row["gaps"] for row in rows)
    assert "unknown" in shown


def test_each_mig_device_has_its_own_figures(report, root: Path) -> None:
    """Processes that call different MIG devices their device 0: rows by the node's numbers, each with its own limit."""
    rows, shown, _ = report((root / "scenarios/mig/limits-by-uuid.yaml").read_text())
    held = {row["process"]: row for row in rows if row["at"] == "barrier done"}
    figures = {name: (row["device"], row["limit"], row["gaps"]) for name, row in held.items()}
    assert figures == {"large": (1, 3 << 30, []), "middle": (2, 1 << 30, []), "small": (3, 2 << 30, [])}
    assert all(row["physical"] == row["ledger"] > 0 for row in held.values())
    assert {row["at"] for row in rows} == {"barrier held", "barrier done", "end"}, "events tell the processes' numbers"
    assert "of 2GiB" not in shown
