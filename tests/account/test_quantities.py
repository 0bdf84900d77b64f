"""`hooklab node show`: physical, limit, ledger and observed stand side by side, and a gap has a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from lab.checks.quantities import from_rows
from lab.region import Region
from lab.runner import quantities
from lab.spec import LedgerRow

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


def explained(tenant: Any, ledger: Any, **more: Any) -> tuple[Any, ...]:
    snapshot = tenant.node.snapshot()
    return from_rows(quantities.moment("now", snapshot, {"tenant": ledger}, **more), quantities.cards(snapshot))


def test_a_ledger_of_sums_alone_is_compared_too(tenant) -> None:
    """As other interposers keep it: by PID and device, of no kind."""
    one = tenant()
    guest = one.start()
    assert guest.do("init") == guest.do("use", 0) == guest.do("alloc", "a", "sync", 64 * MIB, 0) == 0
    (row,) = explained(one, [LedgerRow(slot=0, pid=guest.pid, host_pid=0, bytes=(64 * MIB,))])
    assert (row.ledger, row.gap) == (64 * MIB, CONTEXT)
    assert row.gaps[0].startswith("context: 512.0 MiB held and not booked")
    (row,) = explained(one, [LedgerRow(slot=0, pid=1, host_pid=guest.pid, bytes=())])
    assert (row.ledger, len(row.gaps)) == (0, 2)
    (row,) = explained(one, [LedgerRow(slot=0, pid=1, host_pid=2, bytes=(5,))])
    assert (row.ledger, row.gaps) == (None, ())


def test_devices_that_a_program_numbers_itself_are_told_by_uuid_or_compared_in_their_sum(tenant) -> None:
    one = tenant(CUDA_VISIBLE_DEVICES="1,0")
    guest = one.start(process=3)
    assert guest.do("init") == guest.do("use", 0) == guest.do("alloc", "a", "sync", 64 * MIB, 0) == 0
    held = CONTEXT + 64 * MIB
    with Region.open(one.region) as region:
        (row,) = explained(one, region, renumbering=frozenset({3}))
    assert (row.device, row.physical, row.ledger, row.gaps) == (1, held, held, ())
    foreign = [LedgerRow(slot=0, pid=guest.pid, host_pid=0, bytes=(held, 0))]
    assert any(each.gaps for each in explained(one, foreign))
    (row,) = explained(one, foreign, renumbering=frozenset({3}))
    assert (row.device, row.physical, row.ledger, row.gaps) == (-1, held, held, ())


def test_on_a_real_device_physical_is_not_known() -> None:
    ledger = [LedgerRow(slot=0, pid=7, host_pid=0, bytes=(5, 6))]
    seen = quantities.observed("now", {1: 9}, 7, ledger, container="c", process="p", limit=lambda device: 10 + device)
    (row,) = from_rows(seen, [], evidence="real-gpu")
    assert (row.physical, row.limit, row.ledger, row.observed, row.gap) == (None, 11, 6, 9, None)
