"""cuda.core: device, buffers from its memory resources, stream, event, a program from PTX, launch, memory.

Prints one JSON line.
"""

import json
import re
from pathlib import Path

import numpy as np
from cuda.bindings import __version__
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch, system

N = 10_000
GIB = 1 << 30
PTX = re.search(rb'PTX = b"""(.*?)"""', Path(__file__).with_name("bindings_program.py").read_bytes(), re.DOTALL)[1]


def fits(resource: object, size: int, stream: object) -> bool:
    try:
        buffer = resource.allocate(size, stream=stream)
    except Exception as error:
        if "CUDA_ERROR_OUT_OF_MEMORY" not in str(error):
            raise
        return False
    buffer.close(stream)
    return True


def main() -> None:
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pinned = LegacyPinnedMemoryResource()
    a, b, c = (device.memory_resource.allocate(4 * N, stream=stream) for _ in range(3))
    host = [pinned.allocate(4 * N, stream=stream) for _ in range(3)]
    x, y, z = (np.from_dlpack(buffer).view(np.float32) for buffer in host)
    x[:] = np.arange(N)
    y[:] = np.arange(N) * 2 + 0.5
    host[0].copy_to(a, stream=stream)
    host[1].copy_to(b, stream=stream)
    kernel = ObjectCode.from_ptx(PTX).get_kernel("vadd")
    config = LaunchConfig(grid=(N + 255) // 256, block=256)
    launch(stream, config, kernel, a, b, c, np.uint32(N))
    event = stream.record()
    event.sync()
    c.copy_to(host[2], stream=stream)
    stream.sync()
    report = {
        "bindings": __version__,
        "name": device.name,
        "vadd": bool((z == x + y).all()),
        "event_done": event.is_done,
    }
    for buffer in (a, b, c, *host):
        buffer.close(stream)
    report["total"] = system.Device(index=0).memory_info.total
    report["fits"] = [size for size in (3, 5) if fits(device.memory_resource, size * GIB, stream)]
    print(json.dumps(report))


main()
