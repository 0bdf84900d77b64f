"""Counter-based random numbers: the draw of a worker in a phase depends on (seed, phase, worker) and on nothing else.

Not on how many workers there are, nor on the order in which they come to draw: adding a worker or a phase changes no
other draw.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
_MASK = 0xFFFFFFFF_FFFFFFFF


def stream(seed: int, phase: str) -> np.random.Generator:
    """The generator of one phase. Its n-th draw belongs to worker n where each worker draws once."""
    key = np.array([seed & _MASK, zlib.crc32(phase.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def uniform(seed: int, phase: str, count: int) -> Floats:
    """Shape (count,), in [0, 1): element i is worker i's."""
    return stream(seed, phase).random(count)


def lognormal(seed: int, phase: str, count: int, spread: float) -> Floats:
    """Shape (count,), mean 1, standard deviation `spread`; exactly 1 everywhere when `spread` is 0."""
    if spread == 0:
        return np.ones(count)
    sigma = np.sqrt(np.log1p(spread * spread))
    # Two uniforms a worker rather than a normal draw: the ziggurat takes a varying number of them.
    pair = np.maximum(stream(seed, phase + "/normal").random((count, 2)), 2.0**-53)
    normal = np.sqrt(-2 * np.log(pair[:, 0])) * np.cos(2 * np.pi * pair[:, 1])
    factors: Floats = np.exp(sigma * normal - sigma * sigma / 2)
    return factors
