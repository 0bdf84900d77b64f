"""What a policy looks like to a type checker. Never imported by the engine (typing is slow to start)."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Policy(Protocol):
    """The one required method; see the package for arguments, units and answers.

    A class may also define, each optional:

    * ``lease(device, cost, now, shared: memoryview) -> int``
    * ``observe(device, busy, window, now, shared: memoryview) -> int``
    * ``settle(device, size, kind, ok) -> int | None``
    * ``release(device, size, kind) -> int | None``
    """

    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        """0 = admitted, else the CUresult that the caller sees."""
        ...


@runtime_checkable
class Pacer(Policy, Protocol):
    """A policy that also decides about time."""

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """> 0 tokens granted, < 0 nanoseconds to wait."""
        ...

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """Told how long the device was busy within the last window."""
        ...
