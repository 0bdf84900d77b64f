"""PyTorch under a memory limit: it sees it, works up to it, and fails past it with its own out-of-memory error only.

Figures: `total` and `free` as torch sees them at first, `refused_at` bytes in tensors at the refusal,
`refused_by_torch` 1 when it was torch's own error, `wrong` elements of a checked product, `spoilt` tensors, `again`
bytes that fit after everything was freed, `nvml_total` and `nvml_used` as the container's NVML shows them at the
fullest moment, `held` as torch itself counts its tensors.
"""

from __future__ import annotations

import ctypes
from typing import Any

STEP = 256 << 20


def say(name: str, value: float) -> None:
    """One figure for the scenario."""
    print(f"hooklab: {name}={value}", flush=True)


def nvml_memory() -> tuple[int, int]:
    """(total, used) of the first device as NVML shows them here."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    codes = [
        library.nvmlInit_v2(),
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
        library.nvmlDeviceGetMemoryInfo(device, memory),
    ]
    if any(codes):
        raise SystemExit(f"NVML failed with {codes}")
    return memory[0], memory[2]


def main() -> None:
    """See the module."""
    import torch

    free, total = torch.cuda.mem_get_info()
    say("total", total)
    say("free", free)
    a = torch.randint(-8, 8, (512, 512), device="cuda", dtype=torch.float32)
    product = (a @ a).cpu()  # small integers: exact in any order of summation
    say("wrong", int((product != a.cpu() @ a.cpu()).sum()))
    del a, product
    tensors: list[Any] = []
    by_torch = 0
    try:
        while len(tensors) < 4096:
            tensors.append(torch.empty(STEP, dtype=torch.uint8, device="cuda"))
            tensors[-1].fill_(len(tensors) % 251)
    except torch.OutOfMemoryError:
        by_torch = 1
    say("refused_by_torch", by_torch)
    say("refused_at", len(tensors) * STEP)
    nvml_total, nvml_used = nvml_memory()
    say("nvml_total", nvml_total)
    say("nvml_used", nvml_used)
    say("held", torch.cuda.memory_allocated())
    ends = [(int(tensor[0]), int(tensor[-1])) for tensor in tensors]
    say("spoilt", sum(end != (number % 251, number % 251) for number, end in enumerate(ends, 1)))
    tensors.clear()
    torch.cuda.empty_cache()
    again = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    again.fill_(7)
    say("again", again.numel() if int(again[-1]) == 7 else 0)


if __name__ == "__main__":
    main()
