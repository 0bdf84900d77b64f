"""Kernels that are run elsewhere: the form in which a fake driver hands one to the node's server, and the answer.

A file carries both ways (hl_node_run at its head, input from HL_RUN_DATA on, output behind it). Who runs it is not this
room's matter: the server is given a function.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.node.layout import constants, dtype

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel: ``opcode`` (HL_RUN_*), ``n`` elements (vadd) or bytes (mail), shape (0 = as you like), input."""

    opcode: int
    n: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. ``result``: CUresult; ``deferred``: only later calls show it; ``status``: None = no answer."""

    result: int
    deferred: bool = False
    output: bytes = b""
    status: int | None = None
    bad: int = 0
    seq: int = 0
    kernel_ns: int = 0


Runs = Callable[[Work], Outcome]


def sizes(opcode: int, n: int) -> tuple[int, int]:
    """Bytes of input and output. OSError (EINVAL) for what no driver of ours asks."""
    table = constants()
    if opcode == table["HL_RUN_VADD"] and n <= table["HL_RUN_VADD_MAX"]:
        return 8 * n, 4 * n
    if opcode == table["HL_RUN_MAIL"] and n <= table["HL_RUN_MAIL_MAX"]:
        return 0, n
    raise OSError(errno.EINVAL, f"opcode {opcode} with n = {n}")


def carry_out(descriptor: int, runs: Runs) -> None:
    """Has the kernel in the file run and writes the answer there. OSError when the file is not what it must be."""
    kind, start = dtype("hl_node_run"), int(constants()["HL_RUN_DATA"])
    size = os.fstat(descriptor).st_size
    if size < start:
        raise OSError(errno.EINVAL, "the file is too short")
    with mmap.mmap(descriptor, size) as memory:
        head = np.frombuffer(memory[: kind.itemsize], kind)[0].copy()
        into, out = sizes(int(head["opcode"]), int(head["n"]))
        at = start + -(-into // PAGE) * PAGE
        if at + out > size:
            raise OSError(errno.EINVAL, "the file is too short")
        work = Work(
            opcode=int(head["opcode"]),
            n=int(head["n"]),
            grid=_three(head["grid"]),
            block=_three(head["block"]),
            shared=int(head["shared"]),
            data=memory[start : start + into],
        )
        outcome = runs(work)
        if outcome.result == 0 and len(outcome.output) != out:
            raise OSError(errno.EPROTO, f"{len(outcome.output)} bytes of output, not {out}")
        if outcome.result == 0:
            memory[at : at + out] = outcome.output
        head["result"], head["deferred"] = outcome.result, outcome.deferred
        head["status"] = 0xFFFFFFFF if outcome.status is None else outcome.status
        head["bad"], head["seq"], head["kernel_ns"] = outcome.bad, outcome.seq, outcome.kernel_ns
        memory[: kind.itemsize] = head.tobytes()


def _three(values: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z
