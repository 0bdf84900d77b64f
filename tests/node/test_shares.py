"""Who holds what of a node's shared memory (lab.node.shares): sequences against a model that keeps every claim."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lab.node.shares import Share, Shares

BLOCK = 2 << 20
MAKERS, HOLDERS, NUMBERS = (1, 2), (3, 4), (1, 2, 3)
makers, holders, numbers = st.sampled_from(MAKERS), st.sampled_from(HOLDERS), st.sampled_from(NUMBERS)


class Claims(RuleBasedStateMachine):
    """Shares 1 and 2 of a maker lie in the same block, 3 in the two after it."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares()
        self.made: set[tuple[int, int]] = set()
        self.owned: set[tuple[int, int]] = set()
        self.held: Counter[tuple[int, int, int]] = Counter()
        self.papers: list[tuple[int, tuple[int, int]]] = []
        self.returned: list[tuple[int, int]] = []

    def known(self, maker: int, number: int) -> Share | None:
        return self.shares.find((maker, 1, number))

    @precondition(lambda self: len(self.made) < 6)
    @rule(maker=makers, number=numbers)
    def share(self, maker: int, number: int) -> None:
        if (maker, number) in self.made and (maker, number) not in self.owned:
            return  # a number is not used again
        start, size = (0, BLOCK) if number < 3 else (BLOCK, 2 * BLOCK)
        self.shares.add(Share(slot=maker, generation=1, number=number, kind=1, start=start, bytes=size))
        self.made.add((maker, number))
        self.owned.add((maker, number))

    @rule(maker=makers, number=numbers, holder=holders)
    def hold(self, maker: int, number: int, holder: int) -> None:
        if (maker, number) in self.owned and (share := self.known(maker, number)):
            self.shares.hold(share, holder)
            self.held[holder, maker, number] += 1

    @rule(maker=makers, number=numbers, holder=holders)
    def let_go(self, maker: int, number: int, holder: int) -> None:
        if self.held[holder, maker, number] and (share := self.known(maker, number)):
            self.held[holder, maker, number] -= 1
            self.note(self.shares.let_go(share, holder))

    @rule(maker=makers, number=numbers)
    def paper(self, maker: int, number: int) -> None:
        if (maker, number) in self.owned and (share := self.known(maker, number)):
            _, descriptor = self.shares.paper(share)
            assert self.shares.of_paper(descriptor) is share
            self.papers.append((descriptor, (maker, number)))

    @precondition(lambda self: self.papers)
    @rule()
    def close_paper(self) -> None:
        descriptor, _ = self.papers.pop(0)
        os.close(descriptor)
        (ended,) = [ours for ours in self.shares.papers() if not _open(ours)]
        self.note(self.shares.paper_ended(ended))
        ended.close()

    @rule(maker=makers, number=numbers)
    def disown(self, maker: int, number: int) -> None:
        if (maker, number) in self.owned and (share := self.known(maker, number)):
            self.owned.discard((maker, number))
            assert self.shares.disown(share, share.bytes) == self.is_held(maker, number)

    @rule(maker=makers)
    def maker_ends(self, maker: int) -> None:
        self.owned -= {(maker, number) for number in NUMBERS}
        self.shares.maker_ended(maker, 1)

    @rule(holder=holders)
    def holder_ends(self, holder: int) -> None:
        for claim in list(self.held):
            if claim[0] == holder:
                del self.held[claim]
        self.note(self.shares.holder_ended(holder))

    def note(self, over: list[Share]) -> None:
        for share in over:
            assert (share.slot, share.number) not in self.owned
            self.returned.append((share.slot, share.number))

    def is_held(self, maker: int, number: int) -> bool:
        by_process = any(self.held[holder, maker, number] for holder in HOLDERS)
        return by_process or any(name == (maker, number) for _, name in self.papers)

    @invariant()
    def what_is_kept_is_what_others_hold(self) -> None:
        for maker in MAKERS:
            left = {n for n in NUMBERS if (maker, n) not in self.owned and self.is_held(maker, n)}
            wanted = BLOCK * bool(left & {1, 2}) + 2 * BLOCK * (3 in left)
            assert self.shares.kept(maker, 1) == ({(0, 1): wanted} if wanted else {})

    @invariant()
    def a_share_comes_back_once_and_when_nobody_holds_it(self) -> None:
        assert len(set(self.returned)) == len(self.returned)
        assert not any(self.is_held(*name) for name in self.returned)

    def teardown(self) -> None:
        self.shares.close()
        for descriptor, _ in self.papers:
            os.close(descriptor)


def _open(ours: object) -> bool:
    try:
        return ours.recv(1) != b""  # type: ignore[attr-defined, no-any-return]
    except BlockingIOError:
        return True


Claims.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestClaims = Claims.TestCase


def test_blocks_that_several_hold_count_once_and_own_files_apart() -> None:
    shares = Shares()
    for number, start, size in ((1, 0, BLOCK), (2, 0, BLOCK), (3, BLOCK, BLOCK)):
        shares.hold(shares.add(Share(slot=1, generation=1, number=number, kind=1, start=start, bytes=size)), 3)
    for number in (11, 12):
        file = os.memfd_create("share")
        share = shares.add(Share(slot=1, generation=1, number=number, kind=1, bytes=BLOCK, file=file))
        shares.hold(share, 3)
    shares.maker_ended(1, 1)
    assert shares.kept(1, 1) == {(0, 1): 4 * BLOCK}
    assert shares.shown()[3, 0] == 4 * BLOCK
    shares.close()
