"""cuda.core: device, buffers from its memory resources, stream, event, a program from PTX, launch. One JSON line."""

import json
import re
from pathlib import Path

import numpy as np

try:
    from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
except ImportError:  # before 1.0
    from cuda.core.experimental import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

N = 10_000
PTX = re.search(rb'PTX = b"""(.*?)"""', Path(__file__).with_name("bindings_program.py").read_bytes(), re.DOTALL)[1]


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
    print(json.dumps({"name": device.name, "vadd": bool((z == x + y).all()), "event_done": event.is_done}))
    for buffer in (a, b, c, *host):
        buffer.close(stream)


main()
