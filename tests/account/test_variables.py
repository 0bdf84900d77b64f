"""Variables that other interposers know: honoured, or said not to be; and limits that change while they apply."""

from __future__ import annotations

import pytest

from lab.region import Region

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
OOM = 2


def begun(tenant, **variables: str):
    guest = tenant.start(**variables)
    assert guest.do("init") == guest.do("use", 0) == 0
    return guest


@pytest.mark.parametrize(("value", "result"), [("true", 0), ("1", 0), ("false", OOM), ("", OOM)])
def test_control_is_disabled(tenant, value: str, result: int) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DISABLE_CONTROL=value)
    guest = begun(one)
    assert guest.do("alloc", "a", "sync", 2 * GIB, 0) == result
    assert one.region.exists() == bool(result)


@pytest.mark.parametrize(("value", "result"), [("true", 0), ("unset", OOM)])
def test_managed_memory_may_be_oversubscribed_and_nothing_else(tenant, value: str, result: int) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_OVERSUBSCRIBE=value)
    guest = begun(one)
    assert guest.do("alloc", "m", "managed", 2 * GIB, 0) == result
    assert guest.do("alloc", "a", "sync", 2 * GIB, 0) == OOM
    assert "managed" not in one.ledger(guest.pid, 0)
    assert result or guest.do("free", "m", "sync") == 0
    assert one.differs(guest, 0) is None


@pytest.mark.parametrize(("value", "seen"), [("off", 80 * GIB), ("on", GIB), ("unset", GIB)])
def test_views_can_be_left_alone(tenant, value: str, seen: int) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g", HOOKLAB_MEMINFO=value)
    guest = begun(one)
    total = guest.ask("info")[2]
    assert total == GIB if seen == GIB else total > 70 * GIB
    assert guest.do("alloc", "a", "sync", 2 * GIB, 0) == OOM


@pytest.mark.report("B132", plants="a value that is said to be refused, and one that asks for nothing")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ACTIVE_OOM_KILLER", "true", True),
        ("ACTIVE_OOM_KILLER", "false", False),
        ("MEMORY_LIMIT_TOLERATION_RATE", "1.1", True),
        ("MEMORY_LIMIT_TOLERATION_RATE", "1", False),
        ("CUDA_DISABLE_CONTROL", "perhaps", True),
        ("CUDA_OVERSUBSCRIBE", "perhaps", True),
        ("HOOKLAB_MEMINFO", "perhaps", True),
        ("HOOKLAB_HIDDEN", "perhaps", True),
        ("CUDA_TASK_PRIORITY", "0", False),  # ignored, not asked to say so
        ("RECORD_KERNEL_INTERVAL", "10", False),
    ],
)
def test_what_is_not_done_is_said_once_and_nobody_is_ended(
    tenant, capfd: pytest.CaptureFixture[str], variable: str, value: str, said: bool
) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g", **{variable: value})
    guest = begun(one)
    assert guest.do("alloc", "a", "sync", 256 * MIB, 0) == 0
    assert guest.do("alloc", "b", "sync", 300 * MIB, 0) == OOM  # not a byte more, whatever rate is asked for
    assert guest.end() == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if variable in line]
    assert len(lines) == int(said)


@pytest.mark.parametrize("variable", ["CUDA_TASK_PRIORITY", "RECORD_KERNEL_INTERVAL"])
def test_what_is_ignored_is_said_to_who_asks(tenant, capfd: pytest.CaptureFixture[str], variable: str) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g", HOOKLAB_LOG="2", **{variable: "1"})
    begun(one).end()
    lines = [line for line in capfd.readouterr().err.splitlines() if variable in line]
    assert len(lines) == 1
    assert "ignored" in lines[0] or "not ordered by it" in lines[0]


@pytest.mark.parametrize("kind", ["sync", "pitched", "managed", "async"])
def test_use_above_a_new_limit_is_refused_in_every_family_until_it_is_below(tenant, kind: str) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="4g")
    guest, other = begun(one), begun(one)
    assert guest.do("alloc", "a", kind, GIB, 0) == other.do("alloc", "b", kind, GIB, 0) == 0
    with Region.open(one.region, writable=True) as region:
        region.devices["limit"][0] = 2 * GIB  # 3 GiB are in use: two contexts and two allocations
    for who in (guest, other):
        assert who.ask("info") == [0, 0, 2 * GIB]
        assert who.do("alloc", "c", kind, 64 * MIB, 0) == OOM
    assert other.do("free", "b", "async" if kind == "async" else "sync") == other.do("sync") == 0
    assert guest.do("alloc", "c", kind, 64 * MIB, 0) == OOM  # exactly at the limit
    with Region.open(one.region, writable=True) as region:
        region.devices["limit"][0] = 2 * GIB + 128 * MIB
    assert guest.do("alloc", "c", kind, 64 * MIB, 0) == 0


@pytest.mark.report("B132")
@pytest.mark.parametrize("killer", ["true", "false"])
def test_a_limit_changed_on_a_live_container_applies_at_once(tenant, killer: str) -> None:
    """More is in use then than the limit, and nobody is ended for it."""
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="4g", ACTIVE_OOM_KILLER=killer)
    guest = begun(one)
    assert guest.do("use", 1) == guest.do("use", 0) == 0
    assert guest.do("alloc", "a", "sync", 2 * GIB, 0) == 0
    with Region.open(one.region, writable=True) as region:
        region.devices["limit"][0] = GIB  # less than is in use
    assert guest.ask("info") == [0, 0, GIB]
    assert guest.do("alloc", "b", "sync", MIB, 0) == OOM
    assert guest.do("use", 1) == guest.do("alloc", "far", "sync", 3 * GIB, 1) == 0  # the other device keeps its own
    assert guest.do("use", 0) == guest.do("free", "a", "sync") == 0
    assert guest.do("alloc", "b", "sync", 256 * MIB, 0) == 0
    with Region.open(one.region, writable=True) as region:
        region.devices["limit"][0] = 8 * GIB
    assert guest.do("alloc", "c", "sync", 6 * GIB, 0) == 0
    assert one.differs(guest, 0) is None
    assert one.differs(guest, 1) is None
    assert guest.end() == 0
