"""How many processes a node can hold, and what their limits promise together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lab.sim.plan import PlanError
from lab.spec.profile import load_profile


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bytes and counts; None where there is no such limit. A process here holds a bare context and nothing else."""

    gpu: str
    gpus: int
    workers: int
    device_bytes: int
    context_bytes: int
    context_tag: str  # where the size of a context comes from
    memory: int | None  # limit of a container, each GPU
    cores: int | None  # percent
    contexts: int  # that fit on all GPUs together
    in_one_container: int | None  # contexts within one container's limit on all its GPUs
    containers_by_memory: int | None  # containers whose limits fit without overbooking
    containers_by_cores: int | None

    @property
    def fit(self) -> int:
        """How many of the workers hold their context, all in one container."""
        return min(self.workers, self.contexts, *([] if self.in_one_container is None else [self.in_one_container]))

    def as_json(self) -> Mapping[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "fit": self.fit}


def capacity(
    gpu: str,
    *,
    workers: int,
    gpus: int = 1,
    memory: int | None = None,
    cores: int | None = None,
    context: int | None = None,
) -> Capacity:
    """What `gpus` cards of the profile `gpu` hold. `context`: bytes of a context instead of the profile's."""
    profile = load_profile(gpu)
    size = profile.context_bytes if context is None else context
    if size < 1:
        raise PlanError("a context takes at least one byte")
    tag = profile.constants["memory.context_bytes"].evidence if context is None else "given"
    device = profile.cuda_total_bytes
    limited = None if not memory else min(memory, device)
    return Capacity(
        gpu=gpu,
        gpus=gpus,
        workers=workers,
        device_bytes=device,
        context_bytes=size,
        context_tag=tag,
        memory=memory or None,
        cores=cores or None,
        contexts=device // size * gpus,
        in_one_container=None if limited is None else limited // size * gpus,
        containers_by_memory=None if limited is None else device // limited * gpus,
        containers_by_cores=100 // cores * gpus if cores else None,
    )
