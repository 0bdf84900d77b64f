"""Planned faults hit NVML calls, the very first of a process included."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault
from lab.node.server import NodeServer

UNKNOWN = 999

Probe = Callable[..., Any]

pytestmark = pytest.mark.sanitize


@pytest.fixture
def node(make_node: Callable[..., NodeServer]) -> NodeServer:
    return make_node(containers=["a", "b"])


def test_the_first_init_can_fail(node: NodeServer, probe: Probe) -> None:
    fault = node.plan(Fault(name="nvmlInit_v2", action="return", code=UNKNOWN))
    assert probe(node, "inits", 3) == [UNKNOWN, 0, 0]
    assert probe(node, "inits", 1) == [UNKNOWN], "calls count by process"
    assert node.fired(fault) == 2


@pytest.mark.parametrize(
    ("plan", "hit"),
    [
        ({"call": 2}, {2}),
        ({"call": 2, "mode": "every"}, {2, 4, 6}),
        ({"call": 4, "mode": "from"}, {4, 5, 6}),
        ({"call": 3, "when": "after"}, {3}),
        ({"call": 2, "process": 5}, set()),
        ({"call": 2, "container": 1}, set()),
        ({"call": 2, "container": 0, "process": 4}, {2}),
    ],
)
def test_which_calls_are_hit(node: NodeServer, probe: Probe, plan: dict[str, Any], hit: set[int]) -> None:
    node.plan(Fault(name="nvmlDeviceGetCount_v2", action="return", code=UNKNOWN, **plan))
    seen = probe(node, "counts", 6, HOOKLAB_CONTAINER="0", HOOKLAB_PROCESS="4")
    assert {number for number, (result, _) in enumerate(seen, 1) if result == UNKNOWN} == hit
    assert all(result in (0, UNKNOWN) for result, _ in seen)
    untouched = 77
    for result, value in seen:
        done = result == 0 or plan.get("when") == "after"
        assert value == (1 if done else untouched), "a call refused before the work leaves its output alone"


def test_calls_counted_over_the_node(node: NodeServer, probe: Probe) -> None:
    node.plan(Fault(name="nvmlDeviceGetCount_v2", action="return", code=UNKNOWN, call=5, scope="node"))
    codes = [[result for result, _ in probe(node, "counts", 3)] for _ in range(2)]
    assert codes == [[0, 0, 0], [0, UNKNOWN, 0]]


def test_a_kill_is_a_kill(node: NodeServer, probe: Probe) -> None:
    node.plan(Fault(name="nvmlDeviceGetCount_v2", action="kill", call=2))
    with pytest.raises(AssertionError, match=f"counts: {-signal.SIGKILL}"):
        probe(node, "counts", 3)
    node.wait_live(0)
    assert node.snapshot().calls["nvmlDeviceGetCount_v2"] == 2


def test_a_delay_takes_its_time(node: NodeServer, probe: Probe) -> None:
    node.plan(Fault(name="nvmlDeviceGetCount_v2", action="delay", delay_ns=300_000_000))
    start = time.monotonic()
    assert probe(node, "counts", 1) == [[0, 1]]
    assert time.monotonic() - start >= 0.3


def test_a_device_is_lost_in_the_middle(node: NodeServer, probe: Probe) -> None:
    node.plan(Fault(name="nvmlDeviceGetCount_v2", action="lost", code=0))
    assert probe(node, "counts", 1) == [[0, 1]]
    assert node.snapshot().devices[0].lost
    with pytest.raises(AssertionError):
        probe(node, "identity")


def test_two_processes_meet_in_their_first_call(
    node: NodeServer, guest_environment: Callable[..., dict[str, str]]
) -> None:
    for index in range(2):
        node.expect(process=index, container=0)
    fault = node.plan(Fault(name="nvmlInit_v2", action="meet", meet=2))
    command = [sys.executable, "-S", str(Path(__file__).with_name("probe.py")), "inits", "1"]
    running = [
        subprocess.Popen(
            command,
            env=guest_environment(**node.environment, HOOKLAB_PROCESS=str(index), HOOKLAB_CONTAINER="0"),
            stdout=subprocess.PIPE,
        )
        for index in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == [b"[0]", b"[0]"]
    assert node.fired(fault) == 2
    assert node.file.faults[fault]["open"] == 1
