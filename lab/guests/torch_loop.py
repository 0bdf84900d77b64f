"""A small training loop that times itself on demand (lab/runner/pairs.py): the figure `training step`, in ns.

The model is so small that the GPU waits for launches: what an interposer adds to each of them shows fully. Tensors are
made and dropped in every step, most of them from torch's own cache.
"""

from __future__ import annotations

import sys
import time

STEPS = 50
WARM = 5


def main() -> None:
    """See the module."""
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data, target = torch.randn(256, 512, device="cuda"), torch.randint(0, 10, (256,), device="cuda")

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data + 0.1 * torch.randn_like(data)), target).backward()
            optimizer.step()
        torch.cuda.synchronize()

    steps(3 * STEPS)
    print('{"figure": "training step", "live": 0}\nready', flush=True)
    for _ in sys.stdin:
        steps(WARM)
        start = time.perf_counter_ns()
        steps(STEPS)
        print((time.perf_counter_ns() - start) / STEPS, flush=True)


if __name__ == "__main__":
    main()
