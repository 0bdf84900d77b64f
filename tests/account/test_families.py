"""Every family of device memory: the books say what the driver holds, at every quiet point; the limit refuses with
CUDA_ERROR_OUT_OF_MEMORY; a free gives back."""

from __future__ import annotations

import pytest

from lab.node.faults import Fault

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
STEP = 32 * MIB
OOM = 2


def even(tenant, guest, *, device: int = 0, more: int | None = None, without: frozenset[str] = frozenset()) -> None:
    """Books and driver agree, and hold `more` than a context."""
    assert tenant.differs(guest, device, without=without) is None
    if more is not None:
        books = sum(n for kind, n in tenant.ledger(guest.pid, device).items() if kind not in without)
        assert books - CONTEXT == more


def begun(tenant, **variables: str):
    guest = tenant.start(**variables)
    assert guest.do("init") == guest.do("use", 0) == 0
    return guest


def test_small_allocations_share_blocks(tenant) -> None:
    one = tenant()
    guest = begun(one)
    for i in range(8):
        assert guest.do("alloc", f"s{i}", "sync", 600_000, 0) == 0
        even(one, guest)
    even(one, guest, more=3 * 2 * MIB)
    assert guest.do("alloc", "p", "pitched", 5000, 0) == 0
    even(one, guest)
    for i in range(8):
        assert guest.do("free", f"s{i}", "sync" if i % 2 else "async") == 0
        even(one, guest)
    even(one, guest, more=2 * MIB)
    assert guest.do("free", "p", "sync") == 0
    even(one, guest, more=0)


def test_a_small_allocation_in_a_live_block_is_let_in_at_the_limit(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="516m")
    guest = begun(one)
    assert [guest.do("alloc", f"a{i}", "sync", 2 * MIB - 1024, 0) for i in range(3)] == [0, 0, OOM]
    assert [guest.do("alloc", f"b{i}", "sync", 512, 0) for i in range(5)] == [0, 0, 0, 0, OOM]
    even(one, guest, more=4 * MIB)
    assert one.node.snapshot().containers[0].peak[0] == 516 * MIB


def test_pools_are_charged_by_what_they_hold(tenant) -> None:
    one = tenant()
    guest = begun(one)
    for name, size, grown in [("a", 1, STEP), ("b", MIB, STEP), ("c", 33 * MIB, 2 * STEP)]:
        assert guest.do("alloc", name, "async", size, 0) == 0
        even(one, guest, more=grown)
    assert guest.do("free", "c", "async") == 0
    even(one, guest, more=2 * STEP)  # kept until somebody waits
    assert guest.do("sync") == 0
    even(one, guest, more=STEP)
    assert [guest.do("free", "a", "sync"), guest.do("free", "b", "async-ptsz"), guest.do("sync")] == [0, 0, 0]
    even(one, guest, more=0)


def test_a_pool_with_a_threshold_keeps_its_memory_until_it_is_trimmed(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("default_pool", "pool", 0) == guest.do("threshold", "pool", 2**64 - 1) == 0
    for turn in range(5):
        assert guest.do("alloc", "x", "async", 64 * MIB, 0) == 0
        assert guest.do("free", "x", "async") == guest.do("sync") == 0
        even(one, guest, more=2 * STEP)
        assert turn < 5
    assert guest.do("trim", "pool", 40 * MIB) == 0
    even(one, guest, more=2 * STEP)
    assert guest.do("trim", "pool", 0) == 0
    even(one, guest, more=0)


def test_every_pool_counts_for_itself(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT=f"{512 + 1216}m")
    guest = begun(one)
    assert guest.do("pool", "A", 0) == guest.do("pool", "B", 0) == 0
    assert guest.do("alloc", "a", "async", GIB, 0, "A") == 0
    assert guest.do("alloc", "b", "async", 600 * MIB, 0, "B") == OOM
    even(one, guest, more=GIB)
    assert guest.do("free", "a", "async") == guest.do("pool_end", "A") == 0
    assert guest.do("alloc", "b", "async-ptsz", 600 * MIB, 0, "B") == 0
    even(one, guest, more=608 * MIB)


def test_a_pool_that_was_destroyed_is_held_until_its_last_allocation_goes(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("pool", "A", 0) == guest.do("alloc", "a", "async", GIB, 0, "A") == guest.do("pool_end", "A") == 0
    even(one, guest, more=GIB)
    assert guest.do("free", "a", "async") == guest.do("sync") == 0
    even(one, guest, more=0)


def test_a_pool_of_the_host_costs_nothing(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("pool", "H", 0, 0, True) == guest.do("host", "h", GIB) == 0
    even(one, guest, more=0)


def test_the_device_charged_is_the_pools(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("pool", "far", 1) == guest.do("use", 1) == guest.do("use", 0) == 0
    assert guest.do("alloc", "a", "async", 64 * MIB, 0, "far") == 0
    even(one, guest, more=0)
    even(one, guest, device=1, more=64 * MIB)
    assert guest.do("use", 0) == guest.do("free", "a", "sync") == 0
    even(one, guest, device=1, more=0)


def test_idle_pool_memory_is_given_up_before_anybody_is_refused(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="2560m")
    guest = begun(one)
    assert guest.do("alloc", "a", "async", 1536 * MIB, 0) == guest.do("free", "a", "async") == 0
    even(one, guest, more=1536 * MIB)
    assert guest.do("alloc", "b", "sync", 1536 * MIB, 0) == 0
    even(one, guest, more=1536 * MIB)


def test_physical_memory_is_charged_until_nothing_refers_to_it(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="2g")
    guest = begun(one)
    assert guest.do("physical", "p", 512 * MIB, 0) == guest.do("map", "m", "p", 512 * MIB) == 0
    assert guest.do("map", "n", "p", 512 * MIB) == 0
    even(one, guest, more=512 * MIB)
    assert guest.do("physical", "q", GIB + 2 * MIB, 0) == OOM
    assert guest.do("release", "p") == guest.do("unmap", "m") == 0
    even(one, guest, more=512 * MIB)
    assert guest.do("retain", "r", "n") == guest.do("unmap", "n") == 0
    even(one, guest, more=512 * MIB)
    assert guest.do("release", "r") == 0
    even(one, guest, more=0)
    assert guest.do("physical", "h", GIB, 0, True) == 0
    even(one, guest, more=0)
    assert guest.do("physical", "far", GIB, 1) == guest.do("use", 1) == 0
    even(one, guest, more=0)
    even(one, guest, device=1, more=GIB)


@pytest.mark.parametrize(
    "shape", [(1000, 1000, 0), (100, 100, 100), (4096, 1, 600)], ids=lambda shape: "x".join(map(str, shape))
)
def test_arrays_are_charged_with_the_drivers_size(tenant, shape: tuple[int, int, int]) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g")
    guest = begun(one)
    assert guest.do("array", "a", *shape) == 0
    even(one, guest)
    assert guest.do("array", "b", 16384, 4096, 0) == OOM
    assert guest.do("array_end", "a") == 0
    even(one, guest, more=0)


def test_an_array_that_the_driver_does_not_tell_about_is_estimated(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g")
    one.node.plan(Fault(name="cuArrayGetMemoryRequirements", action="return", mode="every", call=1, code=801))
    guest = begun(one)
    assert guest.do("array", "a", 4096, 1024, 0) == 0
    even(one, guest, more=64 * MIB)
    assert guest.do("array", "b", 16384, 4096, 0) == OOM
    even(one, guest, more=64 * MIB)
    assert guest.do("array", "none", 0, 0, 0) == 1
    assert guest.do("array_end", "a") == 0
    even(one, guest, more=0)


def test_mipmaps_are_charged_with_all_levels(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("array", "a", 1024, 1024, 0, 11) == 0
    even(one, guest)
    assert sum(one.ledger(guest.pid, 0).values()) - CONTEXT > 1024 * 1024 * 16
    assert guest.do("mipmap_end", "a") == 0
    even(one, guest, more=0)


def test_graph_memory_is_charged_at_the_launch_and_kept_until_a_trim(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g")
    guest = begun(one)
    assert guest.do("graph", "g", [64 * MIB], 0, True) == 0
    even(one, guest, more=0)
    assert [guest.do("launch", "g") for _ in range(3)] == [0, 0, 0]
    even(one, guest, more=64 * MIB)
    assert guest.do("graph", "big", [600 * MIB], 0, True) == 0
    assert guest.do("launch", "big") == OOM
    even(one, guest, more=64 * MIB)
    assert guest.do("graph_end", "g") == guest.do("graph_trim", 0) == 0
    even(one, guest, more=0)
    assert guest.do("captured", "c", 40 * MIB, True) == 0
    even(one, guest, more=0)
    assert guest.do("launch", "c") == 0
    even(one, guest, more=64 * MIB)


def test_a_stack_limit_is_charged(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="4g")
    guest = begun(one)
    assert guest.do("stack", 4096) == 0
    even(one, guest)
    held = sum(one.ledger(guest.pid, 0).values())
    assert held > CONTEXT
    assert guest.do("stack", 65536) == OOM
    even(one, guest, more=held - CONTEXT)
    assert guest.do("stack", 1024) == 0
    even(one, guest, more=0)


def test_imports_are_not_charged_again(tenant) -> None:
    one = tenant()
    maker, user = begun(one), begun(one, process=1)
    assert maker.do("alloc", "a", "sync", 64 * MIB, 0) == 0
    result, told = maker.ask("share", "a")
    assert result == 0
    assert user.do("open", "i", told) == user.do("open", "j", told) == 0
    even(one, maker, more=64 * MIB)
    even(one, user, more=0)
    assert one.used(0) == 2 * CONTEXT + 64 * MIB
    assert user.do("close", "i") == user.do("close", "j") == 0
    even(one, user, more=0)


def test_what_others_hold_after_its_maker_freed_it_is_in_nobodys_books(tenant) -> None:
    """On the card it is still there; whose it is no call tells. Observed, it is its only holder's (test_hidden.py)."""
    one = tenant()
    maker, user = begun(one), begun(one, process=1)
    assert maker.do("alloc", "a", "sync", 64 * MIB, 0) == 0
    result, told = maker.ask("share", "a")
    assert result == user.do("open", "i", told) == 0
    assert maker.do("free", "a", "sync") == 0
    assert one.differs(maker, 0) == (CONTEXT, CONTEXT + 64 * MIB)
    extra = one.node.snapshot().devices[0].nvml_context_extra
    seen = {p.host_pid: p.seen(0, extra) - CONTEXT - extra for p in one.node.snapshot().processes}
    assert seen == {maker.pid: 0, user.pid: 64 * MIB}
    even(one, user, more=0)
    assert user.do("close", "i") == 0
    even(one, maker, more=0)


def test_the_end_of_a_context_takes_what_it_owned(tenant) -> None:
    one = tenant()
    guest = begun(one)
    assert guest.do("own_context", "own", 0) == guest.do("enter", "own") == 0
    for name, size in [("big", 64 * MIB), ("small", 1000), ("more", 3000)]:
        assert guest.do("alloc", name, "sync", size, 0) == 0
    assert guest.do("alloc", "pooled", "async", MIB, 0) == guest.do("array", "x", 1000, 1000, 0) == 0
    assert guest.do("physical", "kept", 4 * MIB, 0) == guest.do("stack", 2048) == 0
    even(one, guest)
    assert guest.do("context_end", "own") == guest.do("use", 0) == 0
    even(one, guest, more=STEP + 4 * MIB)


def test_managed_memory_is_charged_when_it_is_asked_for(tenant) -> None:
    one = tenant(CUDA_DEVICE_MEMORY_LIMIT="1g")
    guest = begun(one)
    assert guest.do("alloc", "m", "managed", 256 * MIB, 0) == 0
    assert one.ledger(guest.pid, 0)["managed"] == 256 * MIB
    assert "managed" not in one.truth(guest.pid, 0)  # committed where it is touched: the books are ahead, as declared
    assert guest.do("alloc", "n", "managed", 512 * MIB, 0) == OOM
    assert guest.do("free", "m", "sync") == 0
    even(one, guest, more=0)


def test_without_the_shim_the_limit_is_not_kept(tenant) -> None:
    one = tenant([], CUDA_DEVICE_MEMORY_LIMIT="1g")
    guest = begun(one)
    assert guest.do("physical", "p", 2 * GIB, 0) == guest.do("array", "a", 16384, 4096, 0) == 0
    assert guest.do("stack", 16384) == 0
    assert guest.do("alloc", "a", "async", 2 * GIB, 0) == 0
    assert one.differs(guest, 0) is not None
