"""Limits as the environment states them: none, one for all, one a device, and values that cannot be read."""

from __future__ import annotations

import pytest

from lab.spec.profile import device_uuid, uuid_text

pytestmark = pytest.mark.sanitize
MIB, GIB = 1 << 20, 1 << 30
UUID = uuid_text(device_uuid(0, 0))
OTHER = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.report("B130")
@pytest.mark.parametrize(
    ("variables", "total"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3g"}, 3 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3072m"}, 3 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": str(3 * GIB)}, 3 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "3GiB", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 3 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 5 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "3g", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 5 * GIB),
    ],
)
def test_a_limit_is_read(lab, variables: dict[str, str], total: int) -> None:
    ended = lab.guest("start(); say(info()[2])", **variables)
    assert (ended.status, ended.said, ended.err) == (0, [total], "")


@pytest.mark.report("B130", plants="spellings that mean something else elsewhere")
@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "lots"}, "CUDA_DEVICE_MEMORY_LIMIT:"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "-1"}, "CUDA_DEVICE_MEMORY_LIMIT:"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4x"}, "CUDA_DEVICE_MEMORY_LIMIT:"),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "4 gigs", "CUDA_DEVICE_MEMORY_LIMIT": "4g"}, "CUDA_DEVICE_MEMORY_LIMIT_0:"),
        ({"CUDA_DEVICE_SM_LIMIT": "half"}, "CUDA_DEVICE_SM_LIMIT:"),
        ({"CUDA_DEVICE_SM_LIMIT_0": "101"}, "CUDA_DEVICE_SM_LIMIT_0:"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_once_and_refuses_charges(
    lab, variables: dict[str, str], name: str
) -> None:
    ended = lab.guest("start(); say([alloc(MIB), alloc(MIB), info()[0], init()])", **variables)
    assert (ended.status, ended.said) == (0, [[[2, 0], [2, 0], 0, 0]])
    assert ended.err.count("\n") == 1
    assert ended.err.startswith(f"hooklab: {name}")


def test_a_bad_value_of_another_device_refuses_nothing_here(lab) -> None:
    ended = lab.guest("start(); say(alloc(MIB)[0])", CUDA_DEVICE_MEMORY_LIMIT_1="x", CUDA_DEVICE_MEMORY_LIMIT="4g")
    assert (ended.status, ended.said) == (0, [0])
    assert "CUDA_DEVICE_MEMORY_LIMIT_1:" in ended.err


def test_an_unusable_region_refuses_under_a_limit_and_passes_without(lab) -> None:
    lab.region.write_bytes(b"something else entirely" * 1000)
    limited = lab.guest("start(); say([alloc(MIB)[0], info()[0], info()[1]])", CUDA_DEVICE_MEMORY_LIMIT="4g")
    assert (limited.status, limited.said, limited.err.count("\n")) == (0, [[2, 0, 0]], 1)
    free = lab.guest("start(); say(alloc(MIB)[0])")
    assert (free.status, free.said, free.err.count("\n")) == (0, [0], 1)
    assert lab.region.read_bytes().startswith(b"something else")


@pytest.mark.parametrize(
    ("variables", "total"),
    [
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "3g"}, 3 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID.replace('-', '_')}": "3g"}, 3 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID.upper()}": "3g"}, 3 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "3g", "CUDA_DEVICE_MEMORY_LIMIT_0": "5g"}, 3 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "6g", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 6 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "0", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 84_987_740_160),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}, 5 * GIB),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{OTHER}": "3g"}, 84_987_740_160),
        ({f"CUDA_DEVICE_MEMORY_LIMIT_{OTHER}": "3g", "CUDA_DEVICE_MEMORY_LIMIT_0": "5g"}, 5 * GIB),
    ],
)
def test_a_limit_by_uuid_is_that_devices_and_wins(lab, variables: dict[str, str], total: int) -> None:
    ended = lab.guest("start(); say(info()[2])", **variables)
    assert (ended.status, ended.said, ended.err) == (0, [total], "")


@pytest.mark.parametrize(
    ("name", "value", "device"),
    [
        (f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}", "lots", "that device"),
        (f"CUDA_DEVICE_SM_LIMIT_{UUID}", "half", "that device"),
        (f"CUDA_DEVICE_MEMORY_LIMIT_{UUID[:-1]}", "4g", ""),
        ("CUDA_DEVICE_MEMORY_LIMIT_MIG-x", "4g", ""),
    ],
)
def test_a_limit_by_uuid_that_cannot_be_read_refuses_charges(lab, name: str, value: str, device: str) -> None:
    ended = lab.guest("start(); say([alloc(MIB), info()[0]])", **{name: value})
    assert (ended.status, ended.said, ended.err.count("\n")) == (0, [[[2, 0], 0]], 1)
    assert ended.err.startswith(f"hooklab: {name}: ")
    assert f"charges on {device}" in ended.err if device else "there is no UUID" in ended.err


def test_an_unreadable_limit_of_another_uuid_refuses_nothing_here(lab) -> None:
    ended = lab.guest("start(); say(alloc(MIB)[0])", **{f"CUDA_DEVICE_MEMORY_LIMIT_{OTHER}": "lots"})
    assert (ended.status, ended.said, ended.err.count("\n")) == (0, [0], 1)


def test_a_core_limit_by_uuid_holds_launches_back(lab) -> None:
    """The limiter learns of it when CUDA says which device that is: the process's slot names its policy then."""
    from lab.region import Region

    ended = lab.guest("start(); say(0)", **{f"CUDA_DEVICE_SM_LIMIT_{UUID}": "30"})
    assert (ended.status, ended.said, ended.err) == (0, [0], "")
    with Region.open(lab.region) as region:
        assert int(region.devices["sm_limit"][0]) == 30
        assert bytes(region.devices["uuid"][0]) == device_uuid(0, 0)
        assert region.slots["pacing_policy"][0].startswith(b"hybrid")


def test_a_limit_by_uuid_in_a_region_of_hamis_layout(lab) -> None:
    """Rows are ordinals there; what was said of the UUID is written to the ordinal's."""
    variables = {f"CUDA_DEVICE_MEMORY_LIMIT_{UUID}": "3g", "CUDA_DEVICE_MEMORY_LIMIT": "5g"}
    ended = lab.guest("start(); say([info()[2], alloc(4 * GIB)[0]])", HOOKLAB_REGION_LAYOUT="hami-1.2", **variables)
    assert (ended.status, ended.said, ended.err) == (0, [[3 * GIB, 2]], "")
