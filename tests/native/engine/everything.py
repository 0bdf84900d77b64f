"""A policy that uses everything that is published, also what those modules import inside their functions."""

# ruff: noqa
from __future__ import annotations
import abc, bisect, collections, collections.abc, dataclasses, enum, errno, functools, heapq, itertools, operator
import sys, time, typing, _thread
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict


class Kind(enum.IntEnum):
    A = 0
    B = enum.auto()


class Flag(enum.Flag):
    X = enum.auto()
    Y = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Book:
    used: int = 0
    names: list[str] = dataclasses.field(default_factory=list, compare=False)
    shared: ClassVar[int] = 3


@dataclasses.dataclass
class Undocumented:
    a: int


class Pair(NamedTuple):
    a: int
    b: int = 2


class Dict(TypedDict, total=False):
    a: int


@typing.runtime_checkable
class Sized(Protocol):
    def size(self) -> int: ...


class Base(abc.ABC):
    @abc.abstractmethod
    def admit(self, *all: int) -> int: ...


@functools.singledispatch
def dispatched(value: Any) -> int:
    return 1


@dispatched.register
def _(value: str) -> int:
    return 2


@functools.lru_cache(maxsize=4)
def cached(n: int) -> int:
    return n * 2


@functools.total_ordering
class Ordered:
    def __lt__(self, other):
        return True


class Everything(Base):
    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.point = collections.namedtuple("Point", "x y")(1, 2)
        self.counter = collections.Counter("aab")
        self.chain = collections.ChainMap({}, {1: 2})
        self.queue = collections.deque(maxlen=3)

    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        heap: list[int] = []
        for n in (3, 1, 2):
            heapq.heappush(heap, n)
        bisect.insort(heap, 7)
        book = dataclasses.replace(Book(), used=heapq.heappop(heap))
        assert repr(book) and dataclasses.asdict(book)["used"] == 1 and dataclasses.fields(Undocumented)
        assert typing.get_type_hints(Pair) == {"a": int, "b": int} and typing.get_type_hints(Everything.admit)
        assert Pair(1)._asdict() == {"a": 1, "b": 2} and repr(Kind.B) and repr(Flag.X | Flag.Y) and Kind(1) is Kind.B
        assert dispatched("a") == 2 and cached(2) == 4 and functools.reduce(operator.add, [1, 2]) == 3
        assert list(itertools.accumulate([1, 2])) == [1, 3] and errno.ENOENT == 2 and time.monotonic() > 0
        assert isinstance(heap, collections.abc.Sequence) and repr(self.chain) and repr(self.counter) and f"{used:>8}"
        assert list(heapq.merge([1], [2])) == [1, 2] and heapq.nsmallest(1, [2, 1]) == [1]
        assert typing.cast(int, 3) == 3 and typing.get_args(dict[int, str]) and repr(typing.Optional[int])
        assert sys.getsizeof(heap)
        with self.lock:
            return 0
