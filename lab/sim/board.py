"""The board of a node as a pure model: what paced processes tell each other of their work, and who had what of it.

Equal to the launch path's (pacing_board.c, pacing_divide.c) to the nanosecond; a test holds both against each other.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lab.spec import load_layout

_CONSTANTS = load_layout("board").constants
SLICE: int = _CONSTANTS["HL_BOARD_SLICE_NS"]
SWITCH: int = _CONSTANTS["HL_BOARD_SWITCH_NS"]
JOIN: int = _CONSTANTS["HL_BOARD_JOIN_NS"]
INTERVALS: int = _CONSTANTS["HL_BOARD_INTERVALS"]
LATE = 500_000_000  # work that takes longer is not waited for
LEAST, LONGEST = 50_000_000, 1_000_000_000  # a window; one that would be longer begins anew


@dataclass(slots=True)
class Piece:
    """Work on the GPU, ns. `whole`: it ran in one piece."""

    start: int
    end: int
    whole: bool = False


@dataclass(slots=True)
class Member:
    """One row as it was read; its pieces are in order and none overlaps the next. `own`: of the container that asks."""

    own: bool
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Division:
    """ns: what the container had; when anybody had work; how long the container's work took, others' turns included."""

    own: int
    all: int
    raw: int


class Row:
    """What one process writes. `since`: when the work in flight began, 0 = nothing is; `drain`: when it should end."""

    __slots__ = ("container", "drain", "pieces", "since")

    def __init__(self, container: int) -> None:
        self.container = container
        self.since = self.drain = 0
        self.pieces: deque[Piece] = deque(maxlen=INTERVALS - 1)

    def ran(self, start: int, end: int, whole: bool) -> None:
        """One more interval; close ones of a kind are joined."""
        last = self.pieces[-1] if self.pieces else None
        if last is not None and start < last.end:
            start = last.end
        if start >= end:
            return
        if last is not None and start - last.end < JOIN and last.whole == whole:
            last.end = end
        else:
            self.pieces.append(Piece(start & ~1, end, whole))


@dataclass(frozen=True, slots=True)
class Look:
    """What a container reads. `cut`: up to where; `division` None: nothing new. `others`: rows of other containers."""

    cut: int
    others: int
    window: int = 0
    division: Division | None = None


class Board:
    """The rows of one GPU."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def take(self, container: int) -> Row:
        """A row for one more process."""
        row = Row(container)
        self.rows.append(row)
        return row

    def sample(self, container: int, cut: int, now: int) -> Look:
        """What everybody had since `cut` (0: never read)."""
        if now - cut > LONGEST:
            cut = 0
        until, members, late = now, [], []
        for row in self.rows:
            pieces = [Piece(p.start, p.end, p.whole) for p in row.pieces if p.end >= (cut or now)]
            members.append(Member(row.container == container, pieces))
            since = max(row.since, pieces[-1].end) if row.since and pieces else row.since
            late.append(since)
            if since:
                until = min(until, since)
        until = max(until, now - LATE)
        others = sum(not member.own for member in members)
        if not cut:
            return Look(until, others)
        if until < cut + LEAST:
            return Look(cut, others)
        for row, member, since in zip(self.rows, members, late, strict=True):
            if not since or since >= until or row.drain <= since:
                continue
            last = member.pieces[-1] if member.pieces else None
            if last is not None and not last.whole and since - last.end < JOIN:
                last.end = row.drain
            else:
                member.pieces.append(Piece(since, row.drain))
        return Look(until, others, until - cut, divide(members, cut, until))


def _ran(span: int, n: int) -> int:
    """How long the first of `n` that take turns runs in the first `span` ns; with `n` 1 all of them together."""
    turns = n * (SLICE + SWITCH)
    return span // turns * SLICE + min(span % turns, SLICE)


def divide(members: Sequence[Member], cut: int, until: int) -> Division:
    """Who had what of [`cut`, `until`): work in one piece had all of its time, else contexts take turns by slices."""
    points = {cut, until}
    for member in members:
        for piece in member.pieces:
            points.update(at for at in (piece.start, piece.end) if cut < at < until)
    marks = sorted(points)
    at = [0] * len(members)
    own = everybody = raw = switches = 0
    for start, end in itertools.pairwise(marks):
        span = end - start
        n = mine = brief = brief_mine = joined = edges = 0
        latest_mine = False
        for index, member in enumerate(members):
            pieces = member.pieces
            while at[index] < len(pieces) and pieces[at[index]].end <= start:
                at[index] += 1
            if at[index] == len(pieces):
                continue
            piece = pieces[at[index]]
            if piece.start > start or piece.end < end:
                continue
            n += 1
            mine += member.own
            if piece.whole or piece.end - piece.start <= SLICE:
                brief += 1
                brief_mine += member.own
                if not member.own:
                    edges += (piece.start == start) + (piece.end == end)
            if piece.start >= joined:
                joined, latest_mine = piece.start, member.own
        if not n:
            continue
        everybody += span
        raw += mine * span
        if brief:
            own += brief_mine * span
            if n > brief:  # paid by whose turn it would have been
                switches += SWITCH * edges * (mine - brief_mine) // (n - brief)
        elif n == 1:
            own += mine * span
        else:
            first = _ran(end - joined, n) - _ran(start - joined, n)
            others = _ran(end - joined, 1) - _ran(start - joined, 1) - first
            each = others // (n - 1)
            own += first + (mine - 1) * each if latest_mine else mine * each
    return Division(max(0, own - switches), everybody, raw)
