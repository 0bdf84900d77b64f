"""Whether an output is right, found on the host: mismatches, and the checksum in a fixed order. Pure."""

from __future__ import annotations

import numpy as np

from lab.bridge.records import MAIL, Job, bits, mail_text

_PART = 1 << 16


def mismatches(job: Job, data: bytes, output: bytes | bytearray | memoryview) -> int:
    """Elements (vadd) or bytes (mail) that differ from what they should be.

    A NaN where a NaN should be is right, whatever its payload; zeros of either sign are equal.
    """
    if job.opcode == MAIL:
        return int(np.count_nonzero(np.frombuffer(output, "u1") != np.frombuffer(mail_text(job.n), "u1")))
    inputs, found = np.frombuffer(data, "<f4"), np.frombuffer(output, "<f4")
    with np.errstate(all="ignore"):
        wanted = inputs[: job.n] + inputs[job.n :]
    return int(np.count_nonzero((found != wanted) & ~(np.isnan(found) & np.isnan(wanted))))


def checksum(job: Job, output: bytes | bytearray | memoryview) -> int:
    """Bits of the sum of all elements as doubles, added one after another in the order of their index; 0.0 for mail."""
    if job.opcode == MAIL:
        return bits(0.0)
    found, total = np.frombuffer(output, "<f4"), np.float64(0.0)
    with np.errstate(all="ignore"):
        for at in range(0, len(found), _PART):
            part = found[at : at + _PART].astype("<f8")
            part[0] += total
            total = np.add.accumulate(part)[-1]  # one after another; np.sum adds pairwise
    return bits(float(total))
