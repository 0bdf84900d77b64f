"""The golden frames: what any broker and any client must make of these bytes.

The same bytes lie in tests/identity/golden, one file a frame, for implementations in other languages.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.identity.protocol import Status, request, response


@dataclass(frozen=True, slots=True)
class Frame:
    """One golden frame."""

    name: str
    bytes: bytes
    direction: str
    """`request` or `response`."""
    trusted: bool
    """A request that is answered with the caller's PID; a response whose PID a client takes."""
    meaning: str


FRAMES = (
    Frame("request-get-pid", request(), "request", True, "a valid request, version 1, GET_PID"),
    Frame("request-bad-magic", request(magic=b"HPIE"), "request", False, "another magic"),
    Frame("request-bad-version", request(version=2), "request", False, "a version nobody speaks yet"),
    Frame("request-bad-command", request(command=2), "request", False, "a command that does not exist"),
    Frame("request-little-endian", b"HPID\x01\x00\x01\x00", "request", False, "native instead of network byte order"),
    Frame("request-truncated", request()[:7], "request", False, "seven bytes, then the end of the stream"),
    Frame("request-empty", b"", "request", False, "the end of the stream at once"),
    Frame(
        "request-extra",
        request() + b"\0\0\x1f\x4b",
        "request",
        True,
        "four bytes too many (a PID somebody would like to ask about): never read, the answer is the caller's own PID",
    ),
    Frame("response-8011", response(Status.OK, 8011), "response", True, "success for PID 8011"),
    Frame("response-invalid", response(Status.INVALID), "response", False, "the request was refused"),
    Frame("response-pid-zero", b"HPID\0\x01\0\0\0\0\0\0", "response", False, "success with PID 0 is no success"),
    Frame("response-pid-huge", b"HPID\0\x01\0\0\x80\0\0\0", "response", False, "a PID above 2147483647"),
    Frame("response-status-with-pid", b"HPID\0\x01\0\x01\0\0\x1f\x4b", "response", False, "a refusal that names a PID"),
    Frame("response-bad-magic", b"HPIE\0\x01\0\0\0\0\x1f\x4b", "response", False, "another magic"),
    Frame("response-bad-version", b"HPID\0\x02\0\0\0\0\x1f\x4b", "response", False, "another version"),
    Frame("response-truncated", b"HPID\0\x01\0\0\0\0\x1f", "response", False, "eleven bytes, then the end"),
    Frame("response-extra", response(Status.OK, 8011) + b"\0", "response", True, "a byte too many: never read"),
)
REQUESTS = tuple(frame for frame in FRAMES if frame.direction == "request")
RESPONSES = tuple(frame for frame in FRAMES if frame.direction == "response")
