"""Topology, affinity, the health of cards, MIG and accounting switched off, settings that are the administrator's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer

OK, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND, SMALL, VERSION = 0, 2, 3, 4, 6, 7, 25
pytestmark = pytest.mark.sanitize

PRELUDE = """
import ctypes as c, json
nvml = c.CDLL("libnvidia-ml.so.1")
at, u, n = c.byref, c.c_uint, (lambda v=7: c.c_uint(v))
def call(name, *arguments): return getattr(nvml, name)(*arguments)
before = call("nvmlDeviceGetNumaNodeId", None, at(n()))
assert call("nvmlInit_v2") == 0
d, e = c.c_void_p(), c.c_void_p()
call("nvmlDeviceGetHandleByIndex_v2", 0, at(d)); call("nvmlDeviceGetHandleByIndex_v2", 1, at(e))
said = {"before init": before}
def say(what, *values): said[what] = list(values)
"""


def told(node: NodeServer, environment: Callable[..., dict[str, str]], program: str) -> dict[str, Any]:
    text = PRELUDE + program + "\nprint(json.dumps(said))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", text],
        env=environment(**node.environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def pair() -> Any:
    with NodeServer(gpus=["h200-141g", "h200-141g"]) as node:
        yield node


def test_topology_and_affinity(pair: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> None:
    seen = told(
        pair,
        guest_environment,
        """
import os
v, w, words = n(), n(0), (c.c_ulong * 16)()
for name in ("nvmlGetExcludedDeviceCount", "nvmlUnitGetCount"):
    say(name, call(name, at(v)), v.value)
say("excluded 0", call("nvmlGetExcludedDeviceInfoByIndex", 0, None))
say("unit 0", call("nvmlUnitGetHandleByIndex", 0, at(c.c_void_p())), call("nvmlUnitGetUnitInfo", None, None))
say("itself", call("nvmlDeviceGetTopologyCommonAncestor", d, d, at(v)), v.value)
say("other", call("nvmlDeviceGetTopologyCommonAncestor", d, e, at(v)), v.value)
say("nearest", call("nvmlDeviceGetTopologyNearestGpus", d, 40, at(w), None), w.value)
w.value = 0
say("internal", call("nvmlDeviceGetTopologyNearestGpus", d, 0, at(w), None), w.value)
say("p2p", call("nvmlDeviceGetP2PStatus", d, e, 0, at(v)), v.value)
say("p2p itself", call("nvmlDeviceGetP2PStatus", d, d, 0, at(v)))
say("cpus", call("nvmlDeviceGetCpuAffinity", d, 16, words), sum(bin(x).count("1") for x in words) == os.cpu_count())
say("near", call("nvmlDeviceSetCpuAffinity", d), call("nvmlDeviceClearCpuAffinity", d))
say("no room", call("nvmlDeviceGetCpuAffinity", d, 0, None))
say("memory", call("nvmlDeviceGetMemoryAffinity", d, 1, words, 0), words[0])
say("node", call("nvmlDeviceGetNumaNodeId", d, at(v)), v.value)
say("module", call("nvmlDeviceGetModuleId", e, at(v)), v.value)
""",
    )
    assert seen == {
        "before init": 1,
        "nvmlGetExcludedDeviceCount": [OK, 0],
        "nvmlUnitGetCount": [OK, 0],
        "excluded 0": [INVALID],
        "unit 0": [INVALID, INVALID],
        "itself": [3, 0],
        "other": [OK, 40],
        "nearest": [OK, 1],
        "internal": [OK, 0],
        "p2p": [OK, 0],
        "p2p itself": [OK],
        "cpus": [OK, True],
        "near": [OK, OK],
        "no room": [INVALID],
        "memory": [OK, 1],
        "node": [OK, 0],
        "module": [OK, 1],
    }


def test_a_healthy_card(pair: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> None:
    seen = told(
        pair,
        guest_environment,
        """
v, w, x, y = n(), n(), n(), n()
big = c.c_ulonglong(7)
say("errors", call("nvmlDeviceGetMemoryErrorCounter", d, 0, 0, 0, at(big)), big.value)
say("errors of nothing", call("nvmlDeviceGetMemoryErrorCounter", d, 9, 0, 0, at(big)))
say("rows", call("nvmlDeviceGetRemappedRows", d, at(v), at(w), at(x), at(y)), v.value, w.value, x.value, y.value)
say("pages", call("nvmlDeviceGetRetiredPages", d, 0, at(v), None))
say("ecc", call("nvmlDeviceGetDefaultEccMode", d, at(v)), v.value)
say("encoder", call("nvmlDeviceGetEncoderStats", d, at(v), at(w), at(x)), v.value)
v.value = 0
say("memory clocks", call("nvmlDeviceGetSupportedMemoryClocks", d, at(v), None), v.value)
clocks = (u * 512)()
say("memory clock", call("nvmlDeviceGetSupportedMemoryClocks", d, at(v), clocks), clocks[0])
w.value = 512
say("clocks", call("nvmlDeviceGetSupportedGraphicsClocks", d, clocks[0], at(w), clocks), clocks[0], clocks[w.value - 1])
say("clocks of another", call("nvmlDeviceGetSupportedGraphicsClocks", d, 1, at(w), clocks))
say("application", call("nvmlDeviceGetApplicationsClock", d, 1, at(v)), v.value)
say("power", call("nvmlDeviceGetPowerManagementLimitConstraints", d, at(v), at(w)), v.value, w.value)
say("threshold", call("nvmlDeviceGetTemperatureThreshold", d, 1, at(v)), v.value)
say("acoustic", call("nvmlDeviceGetTemperatureThreshold", d, 5, at(v)))
say("link", call("nvmlDeviceGetPcieSpeed", d, at(v)), v.value)
states = (c.c_int * 16)()
say("states", call("nvmlDeviceGetSupportedPerformanceStates", d, states, 64), states[0], states[1])
text = c.create_string_buffer(64)
say("firmware", call("nvmlDeviceGetGspFirmwareVersion", d, text), text.value.decode())
say("mig device", call("nvmlDeviceGetMigDeviceHandleByIndex", d, 0, at(c.c_void_p())))
say("mig device 7", call("nvmlDeviceGetMigDeviceHandleByIndex", d, 7, at(c.c_void_p())))
say("instance", call("nvmlDeviceGetGpuInstanceId", d, at(v)))
say("accounting", call("nvmlDeviceGetAccountingBufferSize", d, at(v)), v.value)
v.value = 0
say("accounted", call("nvmlDeviceGetAccountingPids", d, at(v), None), v.value)
say("accounts", call("nvmlDeviceGetAccountingStats", d, 1, text))
say("settings", *(call(name, d, 1) for name in ("nvmlDeviceSetPersistenceMode", "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetEccMode", "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetAccountingMode")))
say("locked clocks", call("nvmlDeviceSetGpuLockedClocks", d, 1, 2), call("nvmlDeviceResetGpuLockedClocks", d))
say("mig mode", call("nvmlDeviceSetMigMode", d, 1, at(v)), call("nvmlDeviceSetMigMode", d, 9, at(v)))
say("nobody", call("nvmlDeviceSetPersistenceMode", None, 1))
class Branch(c.Structure): _fields_ = (("version", u), ("text", c.c_char * 80))
b = Branch(c.sizeof(Branch) | 1 << 24)
say("branch", call("nvmlSystemGetDriverBranch", at(b), 80), b.text.decode())
b.version = 1
say("branch, wrong version", call("nvmlSystemGetDriverBranch", at(b), 80))
""",
    )
    assert seen == {
        "before init": 1,
        "errors": [OK, 0],
        "errors of nothing": [INVALID],
        "rows": [OK, 0, 0, 0, 0],
        "pages": [UNSUPPORTED],
        "ecc": [OK, 1],
        "encoder": [OK, 0],
        "memory clocks": [SMALL, 1],
        "memory clock": [OK, 3201],
        "clocks": [OK, 1980, 345],
        "clocks of another": [NOT_FOUND],
        "application": [OK, 1980],
        "power": [OK, 200_000, 700_000],
        "threshold": [OK, 89],
        "acoustic": [UNSUPPORTED],
        "link": [OK, 32000],
        "states": [OK, 0, 32],
        "firmware": [OK, "580.159.04"],
        "mig device": [NOT_FOUND],
        "mig device 7": [INVALID],
        "instance": [UNSUPPORTED],
        "accounting": [OK, 4000],
        "accounted": [OK, 0],
        "accounts": [NOT_FOUND],
        "settings": [NO_PERMISSION] * 5,
        "locked clocks": [NO_PERMISSION, NO_PERMISSION],
        "mig mode": [NO_PERMISSION, INVALID],
        "nobody": [INVALID],
        "branch": [OK, "r580_00"],
        "branch, wrong version": [VERSION],
    }
