"""Inputs whose sums are known without thinking: for demonstrations and measurements."""

from __future__ import annotations

import numpy as np


def ramp(n: int) -> bytes:
    """a = 0, 1, 2 ... and b = 1, 3, 5 ..., so that c = 1, 4, 7 ...; all exact, repeating after a million."""
    index = np.arange(n) % 1_000_000
    return np.concatenate([index, 2 * index + 1]).astype("<f4").tobytes()
