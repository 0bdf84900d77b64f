"""The burst harness with real processes on the fake driver."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from lab.report import burst
from lab.report.burst_phases import PHASES, read_raw
from lab.runner.burst import BurstOptions, run_burst
from lab.runner.guest import GuestError

Command = Callable[..., CompletedProcess[str]]


def play(tmp_path: Path, **options: Any) -> dict[str, Any]:
    options = {"workers": (4,), "out": tmp_path, "timeout_s": 60.0, **options}
    return burst.load_burst(run_burst(BurstOptions(**options), read_raw=read_raw))


@pytest.fixture
def raw_of(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLAB_NATIVE", str(native))


pytestmark = pytest.mark.usefixtures("raw_of")


def test_every_worker_has_its_phases_in_order(tmp_path: Path) -> None:
    (one,) = play(tmp_path, workers=(8,))["runs"]
    assert [worker["ok"] for worker in one["raw"]] == [True] * 8
    for worker in one["raw"]:
        phases = worker["phases"]
        assert {"loader_ready", "wrapper_enter", "region_acquired", "real_exit", "first_alloc"} <= phases.keys()
        inside = [phases[name] for name in PHASES if name in phases and name != "postinit_exit"]
        assert inside == sorted(inside)
        assert phases["loader_ready"] < 0 <= phases["worker_enter"]  # nobody starts before the release
        assert sum(burst.segments(phases).values()) == phases["worker_exit"] - phases["worker_enter"]
    first_alloc = min(worker["phases"]["first_alloc"] for worker in one["raw"])
    assert first_alloc > max(worker["phases"]["worker_exit"] for worker in one["raw"])  # stages do not overlap


def test_phases_of_an_interposer_that_says_nothing_come_from_the_driver(tmp_path: Path) -> None:
    (one,) = play(tmp_path, interposers=("none",), latency="init=2ms")["runs"]
    for worker in one["raw"]:
        phases = worker["phases"]
        assert "wrapper_enter" not in phases
        assert phases["worker_enter"] <= phases["real_enter"] < phases["real_exit"] <= phases["worker_exit"]
        assert phases["real_exit"] - phases["real_enter"] >= 2_000_000


def test_the_drivers_queue_is_seen(tmp_path: Path) -> None:
    """Four workers through a driver that takes 20 ms each, one after another: the k-th waits for k - 1 others."""
    (one,) = play(tmp_path, interposers=("none",), latency="init=20ms")["runs"]
    ends = sorted(worker["phases"]["real_exit"] for worker in one["raw"])
    assert all(ends[k] >= (k + 1) * 20_000_000 for k in range(4))


def test_a_worker_that_dies_has_failed_and_says_why(tmp_path: Path) -> None:
    """Killed as the holder of the region lock: the others neither fail nor wait for a timer."""
    document = play(tmp_path, controls=("lock_owner_killed",), conditions=(), workers=(6,))
    (killed,) = [run for run in document["runs"] if "owner killed" in run["condition"]]
    assert [worker["reason"] for worker in killed["raw"]] == ["killed by SIGKILL"] + [""] * 5
    assert [worker["ok"] for worker in killed["raw"]] == [False] + [True] * 5
    (result,) = burst.controls(document)
    assert result.name == "lock_owner_killed"
    assert result.figure_ns is not None  # the slowest survivor came back


def test_a_burst_that_does_not_end_is_ended(tmp_path: Path) -> None:
    document = play(tmp_path, workers=(2,), interposers=("none",), latency="init=60s", timeout_s=1.0)
    (one,) = document["runs"]
    assert one["timed_out"]
    assert {worker["reason"] for worker in one["raw"]} == {"not finished after 1 s"}
    assert burst.rows(document)[0].percentiles[50] is None


def test_the_order_of_conditions_is_random_and_repeats_with_its_seed(tmp_path: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        document = play(tmp_path, workers=(1,), conditions=("baseline", "bare"), repeat=4, seed=seed)
        orders.append([run["condition"] for run in document["runs"]])
    assert orders[0] == orders[1] != orders[2]


def test_the_parts_of_the_probe(tmp_path: Path) -> None:
    # 300 ms: a tenth of it decides, which must be more than a busy machine adds by chance
    latency = "init=1ms,context_create=300ms,context_destroy=10ms,nvml_init=2ms,nvml_query=1ms,context_nested=5us"
    controls = ("phase_probe", "nested_retain", "warm_holder:primary", "warm_holder:nonprimary")
    document = play(tmp_path, conditions=(), controls=controls, latency=latency)
    outcomes = {result.name: result.outcome for result in burst.controls(document)}
    assert outcomes["phase_probe"] == outcomes["nested_retain"] == "holds"
    # the fake's contexts belong to one process each: a warm GPU does not make another's cheap
    assert outcomes["warm_holder:primary"] == outcomes["warm_holder:nonprimary"] == "loses"


def test_each_worker_sees_its_device(tmp_path: Path) -> None:
    (one,) = play(tmp_path, gpus=("a100-80g", "a100-80g"), visible="spread", workers=(4,))["runs"]
    assert all(worker["alloc"] == 0 for worker in one["raw"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conditions": ("nonsense",)}, "not known"),
        ({"conditions": ("x:novalue",)}, "KEY=VALUE"),
        ({"controls": ("nonsense",)}, "not known"),
        ({"latency": "nap=3ms"}, "write none, profile"),
        ({"on": "moon"}, "fake and real"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(GuestError, match=words) as raised:
        play(tmp_path, **options)
    assert "\n" not in str(raised.value)


def test_the_command(hooklab: Command, tmp_path: Path) -> None:
    out, plot = tmp_path / "runs", tmp_path / "burst.svg"
    done = hooklab("burst", "--workers", "1,2,4", "--repeat", "2", "--out", out, "--json", "--plot", plot)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["evidence"] == "fake-driver"
    assert len(document["runs"]) == 6
    assert [row["workers"] for row in document["rows"]] == [1, 2, 4]
    assert document["lines"][0]["r_squared"] <= 1
    for key in ("interposer", "gpus", "driver", "visible", "barrier", "pid namespace", "native revision", "runtime"):
        assert document["environment"][key]
    assert plot.read_text().startswith("<svg")
    place = next(out.iterdir())
    again = hooklab("report", place)
    assert again.returncode == 0
    assert "where the time of cuInit went" in again.stdout
    assert hooklab("report", place, place).returncode == 0
    planted = tmp_path / "planted"
    planted.mkdir()
    for run in document["runs"]:
        slowest = max(run["raw"], key=lambda one: one["cuinit_ns"])
        slowest["ok"], slowest["reason"] = False, "gave up"
    (planted / "burst.json").write_text(json.dumps(document))
    compared = hooklab("report", place, planted)
    assert compared.returncode == 1
    assert "worse" in compared.stdout


def test_a_trace_for_perfetto(tmp_path: Path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from lab.report import burst_trace as trace

    (one,) = play(tmp_path, workers=(2,))["runs"]
    read = Trace.FromString(trace.trace(one))
    tracks = [packet.track_descriptor.name for packet in read.packet if packet.HasField("track_descriptor")]
    names = [packet.track_event.name for packet in read.packet if packet.HasField("track_event")]
    assert tracks == ["worker 0", "worker 1"]
    assert names.count("driver's cuInit") == 2


@pytest.mark.full
def test_two_hundred_and_fifty_six_register_at_once(tmp_path: Path) -> None:
    (one,) = play(tmp_path, workers=(256,), context="16MiB", timeout_s=300.0)["runs"]
    assert all(worker["ok"] and worker["alloc"] == 0 for worker in one["raw"])
    assert len({worker["pid"] for worker in one["raw"]}) == 256


def test_the_harness_is_the_same_under_every_condition(tmp_path: Path) -> None:
    """A broker, a faulty one, none, procfs: each answers or falls through, and never on cuInit's path."""
    conditions = ("baseline", "client_only", "broker", "broker_missing", "broker_faulty", "procfs")
    document = play(tmp_path, workers=(3,), conditions=conditions)
    counts = {row.condition: row.counts for row in burst.rows(document)}
    assert sorted(counts) == sorted(conditions)
    assert counts["baseline"]["identity not asked"] == 3
    assert counts["broker"]["identity broker"] == 3
    assert "identity broker" not in counts["broker_missing"].keys() | counts["broker_faulty"].keys()
    for one in document["runs"]:
        for worker in one["raw"]:
            assert worker["ok"]
            assert worker["phases"].get("identity_enter", burst.NEVER) > worker["phases"]["worker_exit"]
            assert "identity" not in burst.segments(worker["phases"])


@pytest.mark.parametrize("condition", ["unified_exclusive", "unified_flock"])
def test_the_lock_file_of_earlier_generations_is_a_baseline(tmp_path: Path, condition: str) -> None:
    """One identity experiment at a time; who finds the file created says so and naps, who finds it locked queues."""
    latency = "context_create=2s"  # 100 ms: they meet
    document = play(tmp_path, workers=(4,), conditions=(condition,), latency=latency, time_scale=0.05)
    (one,) = document["runs"]
    assert all(worker["ok"] and worker["alloc"] == 0 for worker in one["raw"])
    phases = sorted((worker["phases"]["identity_enter"], worker["phases"]["identity_exit"]) for worker in one["raw"])
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(phases))
    assert (one["counts"]["waits"] > 0) == (condition == "unified_exclusive")
