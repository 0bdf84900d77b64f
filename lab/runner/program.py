"""The step program of a process as text, for hooklab-caller (the format stands at the head of caller/program.c)."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from lab.scenario.arguments import encode
from lab.scenario.model import Process, Step

MAGIC = "hooklab-program 1"
_NESTED = frozenset({"fork", "exec", "parallel", "repeat"})
_SAFE = "/._-+:@"


def quote(text: str) -> str:
    """Percent-encoded, so that blanks, commas and line ends cannot end a field."""
    return urllib.parse.quote(text, safe=_SAFE)


def program_text(process: Process, *, seed: int, waits: bool) -> str:
    """The whole program. ``seed`` feeds random steps that name none; ``waits``: the start needs the runner's word."""
    lines = [MAGIC, f"set start={'wait' if waits else 'now'}"]
    _append(lines, process.steps, seed)
    return "\n".join(lines) + "\n"


def _append(lines: list[str], steps: Iterable[Step], seed: int) -> None:
    for step in steps:
        arguments = dict(step.arguments)
        if step.op == "random":
            arguments.setdefault("seed", (seed + step.index * 1_000_003) & 0xFFFFFFFFFFFF)
        arguments["as"] = step.label
        if step.op == "call":
            lines.append(_call(step, arguments))
            continue
        fields = [f"{key}={_value(value)}" for key, value in arguments.items() if value is not None]
        lines.append(" ".join(("step", str(step.index), step.op, *fields)))
        if step.op in _NESTED:
            _append(lines, step.steps, seed)
            lines.append("end")


def _call(step: Step, arguments: Mapping[str, Any]) -> str:
    fields = [f"{key}={_value(value)}" for key, value in arguments.items() if key != "with" and value is not None]
    return " ".join(("step", str(step.index), step.op, *fields, f"with={encode(arguments.get('with', ()))}"))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Mapping):
        return ",".join(quote(f"{key}={item}") for key, item in value.items())
    if isinstance(value, list | tuple):
        return ",".join(quote(str(item)) for item in value)
    return quote(str(value))


def barrier_names(process: Process) -> frozenset[str]:
    """Barriers this process itself comes to (a forked child has no channel to the runner)."""
    return frozenset(_barriers(process.steps))


def _barriers(steps: Iterable[Step]) -> Iterable[str]:
    for step in steps:
        if step.op == "barrier":
            yield str(step.arguments.get("name", "barrier"))
        elif step.op != "fork":
            yield from _barriers(step.steps)
