"""The wire protocol: golden files, and what no bytes may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.identity.frames import FRAMES, REQUESTS, RESPONSES, Frame
from lab.identity.protocol import (
    PID_MAX,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    ProtocolError,
    Status,
    Verdict,
    judge,
    pid_of,
    request,
    response,
)

GOLDEN = Path(__file__).parent / "golden"


def test_the_golden_files_are_the_frames() -> None:
    assert {path.stem: path.read_bytes() for path in GOLDEN.glob("*.bin")} == {f.name: f.bytes for f in FRAMES}


def test_the_golden_readme_lists_every_frame() -> None:
    text = (GOLDEN / "README.md").read_text()
    for frame in FRAMES:
        row = next(line for line in text.splitlines() if f"`{frame.name}.bin`" in line)
        assert (frame.bytes.hex(" ") or "(nothing)") in row
        assert f"| {'yes' if frame.trusted else 'no'} |" in row


@pytest.mark.parametrize("frame", REQUESTS, ids=lambda frame: frame.name)
def test_requests(frame: Frame) -> None:
    whole = frame.bytes[:REQUEST_BYTES]
    assert (len(whole) == REQUEST_BYTES and judge(whole) is Verdict.FINE) == frame.trusted


@pytest.mark.parametrize("frame", RESPONSES, ids=lambda frame: frame.name)
def test_responses(frame: Frame) -> None:
    read = frame.bytes[:RESPONSE_BYTES]
    if frame.trusted:
        assert pid_of(read) == 8011
    else:
        with pytest.raises(ProtocolError):
            pid_of(read)


@given(st.binary(max_size=16))
@example(response(Status.OK, 8011))
@example(b"HPID\0\x01\0\0\0\0\0\1")
def test_only_a_successful_answer_has_a_pid(frame: bytes) -> None:
    try:
        pid = pid_of(frame)
    except ProtocolError:
        return
    assert frame == response(Status.OK, pid)


@given(st.binary(min_size=8, max_size=8))
@example(request())
def test_only_one_request_is_fine(frame: bytes) -> None:
    assert (judge(frame) is Verdict.FINE) == (frame == request())


@given(st.integers(1, PID_MAX))
def test_a_pid_comes_back(pid: int) -> None:
    assert pid_of(response(Status.OK, pid)) == pid


@pytest.mark.parametrize(
    ("status", "pid"), [(Status.OK, 0), (Status.OK, -1), (Status.OK, 1 << 31), (Status.INVALID, 1)]
)
def test_a_pid_goes_with_success_only(status: Status, pid: int) -> None:
    with pytest.raises(ValueError, match="does not go with"):
        response(status, pid)
