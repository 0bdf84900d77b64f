"""The GPU backend of the bridge under whatever driver is there: good jobs, refusals, and what is left afterwards.

Prints one JSON line.
"""

from __future__ import annotations

import json

import numpy as np

from lab.bridge.daemon import Daemon
from lab.bridge.gpu import GpuBackend
from lab.bridge.module import Module
from lab.bridge.records import mail_text

BLOCK_TOO_LARGE, ALL_THE_SHARED = (2048, 1, 1), 1 << 20


def main() -> None:
    lines: list[str] = []
    module, backend = Module(), GpuBackend()
    daemon = Daemon(module, backend, log=lines.append)
    report: dict[str, object] = {"device": backend.name, "mail": {}, "vadd": {}, "refused": {}}
    for n in (0, 1, 39, 64, 4096, 32 << 20):
        ticket = module.mail(n)
        daemon.poll()
        report["mail"][str(n)] = [ticket.ok, ticket.output == mail_text(n), ticket.done.bad, ticket.done.checksum]
    for n in (1, 1000, (1 << 22) - 1, 1 << 22):
        inputs = (np.arange(2 * n) % 1000).astype("<f4")
        ticket = module.vadd(inputs.tobytes())
        daemon.poll()
        wanted = inputs[:n] + inputs[n:]
        report["vadd"][str(n)] = [
            ticket.output == wanted.tobytes(),
            ticket.done.bad,
            ticket.done.checksum_value == float(wanted.astype("<f8").sum()),
            ticket.done.kernel_ns > 0,
        ]
    inputs = np.ones(200, "<f4")
    for name, fields in {
        "block": {"block": BLOCK_TOO_LARGE},
        "grid": {"grid": (1, 65536, 1)},
        "shared": {"shared": ALL_THE_SHARED},
        "opcode": {"opcode": 9},
    }.items():
        ticket = module.vadd(inputs.tobytes(), **fields)
        daemon.poll()
        report["refused"][name] = [ticket.status, ticket.err_code, ticket.done.out_bytes_written]
    small = module.vadd(inputs.tobytes(), grid=(2, 1, 1), block=(32, 1, 1))  # 64 of 100 elements
    daemon.poll()
    seen = np.frombuffer(small.output, "<f4")
    report["small"] = [small.ok, small.done.bad, bool((seen[:64] == 2).all()), bool((seen[64:] == 0).all())]
    module.vadd(inputs.tobytes())
    daemon.poll()
    report["last"] = lines[-1]
    backend.close()
    print(json.dumps(report))


main()
