"""Memory that the driver takes by itself: booked as NVML shows it (HOOKLAB_HIDDEN=observed), else its gap is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
OOM = 2
PRINTS, ALLOCATES, HEAP = 64 * MIB, 76 * MIB, 10 * MIB
LOCAL = (16384 - 1024) * 108 * 2048  # of an A100


@pytest.fixture
def started(tenant: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def start(**variables: str) -> tuple[Any, Any]:
        one = tenant(gpus=1, **{"HOOKLAB_HIDDEN": "observed", "LIBVGPU_HOST_PROCFS": "/proc", **variables})
        guest = one.start()
        assert guest.do("init") == guest.do("use", 0) == 0
        return one, guest

    return start


def hidden(one: Any, guest: Any) -> int:
    return one.ledger(guest.pid, 0).get("other", 0)


def test_the_books_follow_what_modules_and_first_launches_take(started) -> None:
    one, guest = started()
    expected = 0
    for name, what, loading, launching in (
        ("a", "plain", 0, 0),
        ("b", "prints", PRINTS, 0),
        ("c", "prints", 0, 0),
        ("d", "allocates", ALLOCATES, HEAP),
        ("e", "local", 0, LOCAL),
        ("f", "large", 6 * MIB, 0),
    ):
        assert guest.do("module", name, what) == 0
        expected += loading
        assert (hidden(one, guest), one.differs(guest, 0)) == (expected, None), what
        assert guest.do("run", name) == guest.do("run", name) == 0
        expected += launching
        assert (hidden(one, guest), one.differs(guest, 0)) == (expected, None), what
    assert guest.do("module_end", "f") == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (expected - 6 * MIB, None)
    assert guest.do("release_primary", 0) == 0
    assert one.differs(guest, 0) is None
    assert one.used(0) == 0


@pytest.mark.parametrize(("given", "context"), [("unset", 512 * MIB), ("", 512 * MIB), ("0", 0), ("300m", 300 * MIB)])
def test_contexts_are_observed_too_unless_their_size_is_given(started, given: str, context: int) -> None:
    one, guest = started(HOOKLAB_CONTEXT_BYTES=given)
    assert guest.do("module", "a", "prints") == 0
    assert one.ledger(guest.pid, 0).get("context", 0) == context
    assert hidden(one, guest) == PRINTS


def test_a_library_is_seen_at_its_first_launch(started) -> None:
    one, guest = started()
    assert guest.do("library", "l", "prints") == guest.do("run", "l", True) == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (PRINTS, None)
    assert guest.do("library_end", "l") == 0
    assert one.differs(guest, 0) is None


def test_a_module_that_does_not_fit_is_refused_and_what_stays_is_booked(started) -> None:
    one, guest = started(CUDA_DEVICE_MEMORY_LIMIT="570m")
    assert guest.ask("module", "a", "prints") == [OOM, None]
    assert one.differs(guest, 0) is None
    assert hidden(one, guest) == PRINTS, "the driver keeps its buffer until the context ends"
    assert guest.do("alloc", "x", "sync", 2 * MIB, 0) == OOM
    assert guest.do("module", "b", "plain") == 0


def test_a_launch_that_takes_too_much_is_booked_all_the_same(started) -> None:
    one, guest = started(CUDA_DEVICE_MEMORY_LIMIT="1g")
    assert guest.do("module", "a", "local") == guest.do("run", "a") == 0
    assert one.differs(guest, 0) is None
    assert one.used(0) > 1 << 30
    assert guest.do("alloc", "x", "sync", 1, 0) == OOM
    assert guest.ask("info")[1] == 0


def test_neighbours_and_own_allocations_do_not_blur_it(started) -> None:
    one, guest = started()
    other = one.start(process=1)
    assert other.do("init") == other.do("use", 0) == 0
    for step, what in enumerate(("prints", "allocates")):
        assert guest.do("alloc", f"x{step}", "sync", 30 * MIB + step, 0) == other.do("alloc", "y", "async", MIB, 0) == 0
        assert guest.do("module", what, what) == 0
        assert guest.do("free", f"x{step}", "sync") == other.do("free", "y", "async") == 0
        assert one.differs(guest, 0) is one.differs(other, 0) is None
    assert (hidden(one, guest), hidden(one, other)) == (PRINTS + ALLOCATES, 0)


def test_devices_in_another_order_have_their_own_rows(tenant) -> None:
    one = tenant(HOOKLAB_HIDDEN="observed", LIBVGPU_HOST_PROCFS="/proc")
    straight = one.start()
    assert straight.do("init") == straight.do("use", 0) == straight.do("module", "a", "allocates") == 0
    crossed = one.start(process=1, CUDA_VISIBLE_DEVICES="1,0")
    assert crossed.do("init") == crossed.do("use", 0) == crossed.do("module", "a", "prints") == 0
    assert one.truth(crossed.pid, 1)["other"] == PRINTS
    assert sum(one.ledger(crossed.pid, 1).values()) == sum(one.truth(crossed.pid, 1).values())
    assert one.differs(straight, 0) is None


def test_several_contexts_each_have_their_own(started) -> None:
    one, guest = started()
    assert guest.do("module", "a", "prints") == guest.do("own_context", "c", 0) == guest.do("enter", "c") == 0
    assert guest.do("module", "b", "prints") == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (2 * PRINTS, None)
    assert guest.do("context_end", "c") == guest.do("use", 0) == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (PRINTS, None)


def test_what_managed_memory_hides_stays_a_gap(started) -> None:
    one, guest = started()
    assert guest.do("alloc", "m", "managed", 8 * MIB, 0) == guest.do("module", "a", "prints") == 0
    assert hidden(one, guest) == 0
    assert guest.do("free", "m", "sync") == guest.do("module", "b", "plain") == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (PRINTS, None), "the next look takes it up"


def test_a_stack_limit_below_what_a_kernel_took_gives_it_back(started) -> None:
    one, guest = started()
    assert guest.do("module", "a", "local") == guest.do("run", "a") == 0
    assert guest.do("stack", 8192) == 0
    assert one.differs(guest, 0) is None
    assert guest.do("stack", 1024) == 0
    assert (hidden(one, guest), one.differs(guest, 0)) == (0, None)


def test_memory_whose_maker_let_go_is_its_only_holders(started) -> None:
    one, maker = started()
    user = one.start(process=1)
    assert user.do("init") == user.do("use", 0) == 0
    assert maker.do("alloc", "a", "sync", 64 * MIB, 0) == 0
    result, told = maker.ask("share", "a")
    assert result == user.do("open", "i", told) == 0
    assert (hidden(one, user), one.differs(maker, 0)) == (0, None)
    assert maker.do("free", "a", "sync") == 0
    assert user.do("module", "m", "plain") == 0
    assert hidden(one, user) == 64 * MIB
    assert user.do("close", "i") == 0
    assert hidden(one, user) == 0
    assert one.differs(user, 0) is one.differs(maker, 0) is None


@pytest.mark.parametrize("how", ["unset", "off", "sometimes"])
def test_off_the_gap_is_named(started, hooklab, how: str) -> None:
    one, guest = started(HOOKLAB_HIDDEN=how)
    assert guest.do("module", "a", "allocates") == guest.do("run", "a") == 0
    assert hidden(one, guest) == 0
    done = hooklab("node", "show", one.node.socket_path, "--region", f"tenant={one.region}", "--json")
    (row,) = json.loads(done.stdout)["memory"]
    (gap,) = row["gaps"]
    assert gap.startswith("other: 86.0 MiB held and not booked")
    assert "device functions" in gap
    assert "device heap" in gap
