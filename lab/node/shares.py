"""What the processes of a node share: memory that one of them exported and others opened, and who holds it.

Bytes on the device live as long as anybody holds them: the maker, until it frees them or ends; a holder, until it
closes them or ends; a paper, a descriptor that stands for the share, until its last copy is closed. Whose accounts
the bytes are in never changes: it is the maker, whether it lives or not. This module knows who holds what and how many
bytes of a maker must stay; it changes no accounts.

Measured (real-gpu, H200): a maker killed with 64 MiB opened by descriptor and 32 MiB by handle leaves all 96 MiB taken
until the importer lets go; one that frees them leaves them taken as long. A descriptor holds, too, and an imported pool
holds what was imported from it after the pointers are freed. Assumed: to whom NVML shows them. The published kernel
driver counts memory with one reference left as that client's own, and shared memory for its owner alone; so a single
holder is shown, and of several none.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

OWN_FILE_SHIFT = 64  # a share with a file of its own has addresses of its own, above those of all memory files
Key = tuple[int, int, int]


@dataclass(eq=False, kw_only=True)
class Share:
    """One exported piece of memory. ``start`` and ``bytes`` are whole physical blocks of the maker on ``device``."""

    slot: int
    generation: int
    number: int
    device: int = 0
    kind: int = 0
    start: int = 0
    bytes: int = 0
    file: int = -1
    """Its own file; -1: it lies in the maker's memory file."""
    owned: bool = True
    """The maker has not let go of it."""
    gone: bool = False
    """The maker has ended."""
    owed: int = 0
    """What is in a living maker's accounts although it let go, to be given back with the last holder."""
    holders: Counter[int] = field(default_factory=Counter)
    """Slots, and how often each opened it."""
    papers: set[socket.socket] = field(default_factory=set)
    """Our ends of the descriptors that stand for it."""

    @property
    def key(self) -> Key:
        """How requests name it."""
        return (self.slot, self.generation, self.number)

    @property
    def held(self) -> bool:
        """Whether anybody but its maker holds it."""
        return bool(self.holders or self.papers)


class Shares:
    """All shares of a node. Methods that end a hold return the shares that nobody has any more."""

    def __init__(self) -> None:
        self._shares: dict[Key, Share] = {}
        self._left: set[Share] = set()  # those whose maker let go
        self._papers: dict[socket.socket, Share] = {}
        self._inodes: dict[tuple[int, int], Share] = {}

    def add(self, share: Share) -> Share:
        """Know a share; one that is known already keeps its holders (and the new file is closed)."""
        known = self._shares.setdefault(share.key, share)
        if known is not share and share.file >= 0:
            os.close(share.file)
        return known

    def find(self, key: Key) -> Share | None:
        """The share of that name."""
        return self._shares.get(key)

    def paper(self, share: Share) -> tuple[socket.socket, int]:
        """A new descriptor that stands for the share: (our end, theirs). Ours reads as ended when no copy is left."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptor = theirs.detach()
        share.papers.add(ours)
        self._papers[ours] = share
        self._inodes[_identity(descriptor)] = share
        return ours, descriptor

    def is_paper(self, ours: socket.socket) -> bool:
        """Whether this is our end of one."""
        return ours in self._papers

    def papers(self) -> list[socket.socket]:
        """Our ends of all of them."""
        return list(self._papers)

    def of_paper(self, descriptor: int) -> Share | None:
        """The share that somebody's descriptor stands for."""
        return self._inodes.get(_identity(descriptor))

    def paper_ended(self, ours: socket.socket) -> list[Share]:
        """No copy of the descriptor is left."""
        share = self._papers.pop(ours)
        share.papers.discard(ours)
        if not share.papers:
            self._inodes = {identity: other for identity, other in self._inodes.items() if other is not share}
        return self._over([share])

    def hold(self, share: Share, slot: int) -> None:
        """The process opened it once more."""
        share.holders[slot] += 1

    def let_go(self, share: Share, slot: int) -> list[Share]:
        """The process closed it once."""
        share.holders[slot] -= 1
        share.holders = +share.holders
        return self._over([share])

    def holder_ended(self, slot: int) -> list[Share]:
        """All that a process held, however often."""
        held = [share for share in self._shares.values() if share.holders.pop(slot, 0)]
        return self._over(held)

    def disown(self, share: Share, owed: int) -> bool:
        """The maker let go, and ``owed`` bytes stay in its accounts if others hold it (True)."""
        self._leave(share, owed)
        return not self._over([share])

    def maker_ended(self, slot: int, generation: int) -> None:
        """Whatever of the process nobody holds is forgotten; the rest is owed by nobody alive."""
        made = [share for share in self._shares.values() if (share.slot, share.generation) == (slot, generation)]
        for share in made:
            self._leave(share, 0)
            share.gone = True
        self._over(made)

    def kept(self, slot: int, generation: int) -> Mapping[tuple[int, int], int]:
        """Bytes of an ended process that others hold, by (device, kind). Blocks that several share count once."""
        found: dict[tuple[int, int], list[Share]] = {}
        for share in self._left:
            if (share.slot, share.generation) == (slot, generation) and share.bytes:
                found.setdefault((share.device, share.kind), []).append(share)
        return {place: _covered(shares) for place, shares in found.items()}

    def shown(self) -> Mapping[tuple[int, int], int]:
        """What NVML shows of processes beside their accounts, by (slot, device)."""
        result: Counter[tuple[int, int]] = Counter()
        alone: dict[tuple[int, int], list[Share]] = {}
        for share in self._left:
            result[share.slot, share.device] -= share.owed
            if (share.gone or share.owed) and len(share.holders) == 1 and not share.papers:
                alone.setdefault((next(iter(share.holders)), share.device), []).append(share)
        for place, shares in alone.items():
            makers = {(share.slot, share.generation, share.kind) for share in shares}
            result[place] += sum(
                _covered([share for share in shares if (share.slot, share.generation, share.kind) == maker])
                for maker in makers
            )
        return result

    def close(self) -> None:
        """Forget everything."""
        for ours in self.papers():
            ours.close()
        for share in self._shares.values():
            if share.file >= 0:
                os.close(share.file)
        self._shares.clear()
        self._left.clear()
        self._papers.clear()
        self._inodes.clear()

    def _leave(self, share: Share, owed: int) -> None:
        share.owned, share.owed = False, owed
        self._left.add(share)

    def _over(self, shares: Iterable[Share]) -> list[Share]:
        """Those that neither maker nor anybody else has, which are no more. A share with a file of its own can be held
        by paper only: without one it need not be known until it is exported again."""
        over = []
        for share in shares:
            if share.held or (share.owned and share.file < 0):
                continue
            self._shares.pop(share.key, None)
            self._left.discard(share)
            if share.file >= 0:
                os.close(share.file)
            if not share.owned:
                over.append(share)
        return over


def _identity(descriptor: int) -> tuple[int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def _covered(shares: Iterable[Share]) -> int:
    """Bytes of the union of their blocks."""
    total = end = 0
    for start, stop in sorted(_extent(share) for share in shares):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def _extent(share: Share) -> tuple[int, int]:
    start = share.start if share.file < 0 else share.number << OWN_FILE_SHIFT
    return start, start + share.bytes
