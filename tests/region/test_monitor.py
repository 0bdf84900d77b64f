"""A monitor outside and the launches inside, in layout hami-1.2: what each writes and what it makes the other do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.checks import history
from lab.region import HamiRegion, RegionError
from lab.region.monitor import HamiMonitor, one_round, play
from lab.report.model import RunReport, report_run
from lab.scenario.load import loads

Run = Callable[..., subprocess.CompletedProcess[str]]
TENANT = """
name: monitored
containers:
  tenant:
    dialect: hooklab-hami
    limits: {limits}
    environment: {environment}
    processes:
      - name: maker
        steps: [init, {{alloc: {{bytes: 1MiB}}}}]
      - name: monitor
        start: {{after: maker}}
        run: [hooklab, region, monitor, {actions}]
      - name: program
        start: {{after: monitor}}
        steps: [init, {{alloc: {{bytes: 64MiB, as: x}}}}, {{launch: {{{launch}}}}}, sync]
"""
NO_LIMIT, HALF = "{memory: 4GiB}", "{memory: 4GiB, cores: 50}"
BUSY = "kernel: busy, duration: 5ms, count: {count}"


@pytest.fixture
def monitored(tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunReport, Any]]:
    """Plays TENANT: the run's report and the region as it was left."""
    from lab.runner.execute import run_scenario

    monkeypatch.setenv("HOOKLAB_NATIVE", str(native))

    def do(
        *actions: str, limits: str = NO_LIMIT, launch: str = BUSY.format(count=1), environment: str = "{}"
    ) -> tuple[RunReport, Any]:
        words = ", ".join(word for action in actions or ("release",) for word in ("--do", action))
        text = TENANT.format(limits=limits, environment=environment, launch=launch, actions=words)
        (scenario,) = loads(text, str(tmp_path / "scenario.yaml"))
        report = report_run(scenario, run_scenario(scenario, out=tmp_path / "runs"))
        assert report.status == "valid", [one for one in report.verdicts if one.status != "valid"]
        return report, HamiRegion(Path(report.directory) / "region-tenant").record

    return do


def test_who_writes_what(monitored: Callable[..., tuple[RunReport, Any]]) -> None:
    """priority by the maker, last_kernel_time and recent_kernel by launches, monitor_used and util by the sampler."""
    before = int(time.time())
    _, record = monitored(limits=HALF, launch=BUSY.format(count=200), environment='{CUDA_TASK_PRIORITY: "3"}')
    slot = record["procs"][0]
    assert int(record["priority"]) == 3
    assert before <= int(record["last_kernel_time"]) <= time.time()
    assert int(record["recent_kernel"]) == 2
    assert (int(record["utilization_switch"]), int(record["sm_init"])) == (1, 0)
    assert int(slot["monitor_used"][0]) >= int(slot["used"][0]["total"]) > 64 << 20
    assert 0 < int(slot["util"][0]["sm"]) <= 100
    assert int(slot["util"][0]["encoder"]) == int(slot["util"][0]["decoder"]) == 0


def test_the_region_of_a_program_that_launches_nothing(monitored: Callable[..., tuple[RunReport, Any]]) -> None:
    _, record = monitored(launch="kernel: busy, duration: 1ms, count: 1, result: any")
    assert int(record["priority"]) == 1
    assert int(record["procs"]["monitor_used"][0][0]) == 0  # nobody samples without a core limit


@pytest.mark.parametrize(("policy", "switch", "paced"), [("", 0, 0), ("force", 0, 20), ("disable", 1, None)])
def test_a_switch_that_is_off_lets_launches_pass_unpaced(
    monitored: Callable[..., tuple[RunReport, Any]], policy: str, switch: int, paced: int | None
) -> None:
    """HAMi's meaning of both words; with `disable` the limiter is not there and says nothing."""
    report, _ = monitored(
        f"utilization_switch={switch}",
        limits=HALF,
        launch="kernel: busy, duration: 1ms, count: 20",
        environment=f'{{GPU_CORE_UTILIZATION_POLICY: "{policy}"}}',
    )
    records = history.load(Path(report.directory) / "history").records
    said = records[records["event"] == history.event("PACING")]
    told = (int(said[-1]["c"]), int(said[-1]["extra"])) if len(said) else None  # paced, unpaced
    assert told == (None if paced is None else (paced, 20 - paced))


@pytest.fixture
def files(passes: Run, region_program: Callable[[str], Path], tmp_path: Path) -> list[Path]:
    """Three regions of layout hami-1.2, priorities 0, 1 and 1."""
    passes("members", 1)
    data = bytearray((tmp_path / "region").read_bytes())
    found = []
    for index, priority in enumerate((0, 1, 1)):
        found.append(tmp_path / f"region-{index}")
        found[-1].write_bytes(data)
        with HamiMonitor(found[-1]) as monitor:
            monitor.set("priority", priority)
            monitor.set("recent_kernel", 0)
    return found


def test_lower_priorities_wait_while_higher_ones_launch(files: list[Path]) -> None:
    monitors = [HamiMonitor(file) for file in files]
    monitors[0].set("recent_kernel", 2)  # as a launch leaves it
    one_round(monitors)
    assert [monitor.blocked for monitor in monitors] == [False, True, True]
    one_round(monitors)  # nothing was launched since: 2, 1, 0
    assert [monitor.blocked for monitor in monitors] == [False, False, False]
    assert [monitor.get("utilization_switch") for monitor in monitors] == [0, 0, 0]
    monitors[1].set("recent_kernel", 2)
    one_round(monitors)
    assert [monitor.get("utilization_switch") for monitor in monitors] == [0, 0, 1]
    assert not any(monitor.blocked for monitor in monitors)  # equals do not block each other
    for monitor in monitors:
        monitor.close()


def test_a_monitor_that_dies_leaves_a_block_for_the_next(files: list[Path]) -> None:
    play(files[:1], ["block"])
    play(files[:1], ["restart", "priority=7"])
    with HamiMonitor(files[0]) as monitor:
        assert monitor.blocked
        assert monitor.get("priority") == 7
    play(files[:1], ["release"])
    with HamiMonitor(files[0]) as monitor:
        assert not monitor.blocked


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("nonsense", "no action of a monitor"),
        ("lock=1", "no number 'lock'"),
        ("priority=x", "whole number"),
        ("priority=99999999999", "does not fit"),
        ("wait=3", "a duration"),
        ("live=9", "less than 9 slots in time"),
        ("kernel", "nothing was launched in time"),
    ],
)
def test_what_a_monitor_cannot_do_is_one_line(files: list[Path], action: str, words: str) -> None:
    with pytest.raises(RegionError, match=words) as raised:
        play(files[:1], [action], timeout_s=0.01)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_region(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 3_000_000)
    with pytest.raises(RegionError, match="not a region"):
        HamiMonitor(tmp_path / "other")
    with pytest.raises(RegionError, match="no region was made there in time"):
        play([tmp_path / "nothing"], [], timeout_s=0.01)


def test_the_command(files: list[Path], hooklab: Run) -> None:
    done = hooklab("region", "monitor", *files, "--do", "block")
    assert done.returncode == 0, done.stderr
    assert "recent_kernel: -1" in hooklab("region", "show", files[0]).stdout
    done = hooklab("region", "monitor", files[0], "--do", "dance")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
