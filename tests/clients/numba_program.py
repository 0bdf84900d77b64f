"""numba-cuda: detect the device, copy there and back, compile a kernel just in time and launch it. One JSON line.

The kernel is numba's own: a fake device takes its time and does not execute it, a real one does.
"""

import json

import numpy as np
from cuda.bindings import __version__
from numba import cuda


@cuda.jit
def double(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


def main() -> None:
    found = cuda.detect()
    values = np.arange(1000, dtype=np.float32)
    there = cuda.to_device(values)
    back = there.copy_to_host()
    before = cuda.current_context().get_memory_info()
    double[8, 128](there)
    cuda.synchronize()
    after = there.copy_to_host()
    print(
        json.dumps(
            {
                "bindings": __version__,
                "detected": bool(found),
                "name": cuda.get_current_device().name.decode()
                if isinstance(cuda.get_current_device().name, bytes)
                else cuda.get_current_device().name,
                "round_trip": bool((back == values).all()),
                "total": before.total,
                "executed": bool((after == values * 2).all()),
                "unchanged": bool((after == values).all()),
            }
        )
    )


main()
