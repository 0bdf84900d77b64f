"""PyTorch with forked DataLoader workers: they work beside an initialised parent, charge nothing, leave nothing behind.

Figures: `batches` that came, `wrong` sums, `free_before` and `free_after` as torch sees them with everything given
back, `trained` 1 when the loss of a small model went down on what the workers brought.
"""

from __future__ import annotations

from typing import Any


def say(name: str, value: float) -> None:
    """One figure for the scenario."""
    print(f"hooklab: {name}={value}", flush=True)


def main() -> None:
    """See the module."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):  # type: ignore[misc]  # torch has no types where it is not installed
        def __len__(self) -> int:
            return 256

        def __getitem__(self, index: int) -> Any:
            return torch.full((64,), float(index % 16))

    torch.manual_seed(1)
    model = torch.nn.Linear(64, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    torch.cuda.synchronize()
    free_before = torch.cuda.mem_get_info()[0]
    wrong = batches = 0
    losses: list[float] = []
    for _ in range(3):
        loader = DataLoader(Numbers(), batch_size=32, num_workers=2, pin_memory=True, multiprocessing_context="fork")
        total = 0.0
        for data in loader:
            batches += 1
            there = data.cuda(non_blocking=True)
            wrong += int(there.sum().cpu() != data.sum())
            loss = ((model(there) - there.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        losses.append(total)
    say("batches", batches)
    say("wrong", wrong)
    say("trained", int(losses[-1] < losses[0]))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say("free_before", free_before)
    say("free_after", torch.cuda.mem_get_info()[0])


if __name__ == "__main__":
    main()
