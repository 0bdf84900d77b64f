"""`hooklab node show`: physical, limit, ledger and observed stand side by side, and a gap has a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MIB = 1 << 20
CONTEXT = 512 * MIB


def show(tenant: Any, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab.cli", "node", "show", str(tenant.node.socket_path), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rows(tenant: Any, *more: str) -> list[dict[str, Any]]:
    done = show(tenant, "--json", *more)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["memory"])


def test_four_quantities_by_process_and_device(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="4g")
    guest, other = one.start(), one.start(process=1)
    assert guest.do("init") == guest.do("use", 0) == guest.do("alloc", "a", "async", 1, 0) == 0
    assert guest.do("use", 1) == guest.do("alloc", "m", "managed", 64 * MIB, 1) == 0
    assert other.do("init") == other.do("use", 1) == 0
    found = {(row["host_pid"], row["device"]): row for row in rows(one, "--region", f"tenant={one.region}")}
    assert set(found) == {(guest.pid, 0), (guest.pid, 1), (other.pid, 1)}
    extra = one.node.snapshot().devices[0].nvml_context_extra
    first = found[guest.pid, 0]
    assert first["physical"] == first["ledger"] == CONTEXT + 32 * MIB
    assert first["observed"] == first["physical"] + extra
    assert (first["limit"], first["gaps"]) == (4 << 30, [])
    second = found[guest.pid, 1]
    assert second["ledger"] - second["physical"] == 64 * MIB
    assert len(second["gaps"]) == 1
    assert "managed: 64.0 MiB booked and not held" in second["gaps"][0]
    text = show(one, "--region", f"tenant={one.region}").stdout
    for word in ("physical", "limit", "ledger", "observed", "gap", "booked and not held"):
        assert word in text


def test_without_a_ledger_it_is_unknown_and_never_zero(tenant) -> None:
    one = tenant([])
    guest = one.start()
    assert guest.do("init") == guest.do("use", 0) == 0
    (row,) = rows(one)
    assert (row["ledger"], row["physical"], row["gaps"]) == (None, CONTEXT, [])
    assert "unknown" in show(one).stdout


def test_a_region_that_is_none_is_said_in_one_line(tenant) -> None:
    one = tenant([])
    for word in ("tenant=/nowhere/region", "tenant"):
        done = show(one, "--region", word)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
