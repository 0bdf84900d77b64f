"""Sizes and durations: exact, strict, and the spelling round-trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.scenario.units import DURATION_UNITS, SIZE_UNITS, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("2400MiB", 2400 << 20),
        ("1.5 GiB", 3 << 29),
        ("1kB", 1000),
        ("7B", 7),
        ("7bytes", 7),
        (0, 0),
        (123, 123),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["4G", "4", "GiB", "-1GiB", "4 gib", "0.3B", "1e3MiB", "", "4GiB x", None, True, 1.5, -1, 2**63, "9999999TiB"],
)
def test_sizes_that_are_errors(text: object) -> None:
    with pytest.raises(ValueError, match=r"size"):
        parse_size(text)


def test_durations() -> None:
    assert parse_duration("5ms") == 5_000_000
    assert parse_duration("1.5us") == 1_500
    assert parse_duration("2 min") == 120 * 10**9
    assert parse_duration(0) == 0


@pytest.mark.parametrize("text", [5, "5", "5 sec", "0.5ns", "-5ms", None, "5mS"])
def test_durations_that_are_errors(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        parse_duration(text)


@given(st.integers(0, 2**63 - 1))
def test_a_formatted_size_parses_to_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZE_UNITS)), st.sampled_from(sorted(DURATION_UNITS)))
def test_whole_numbers_of_every_unit(number: int, size: str, duration: str) -> None:
    assert parse_size(f"{number}{size}") == number * SIZE_UNITS[size]
    assert parse_duration(f"{number}{duration}") == number * DURATION_UNITS[duration]
