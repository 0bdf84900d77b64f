"""The names a scenario may use: GPU profiles, hook names, result codes, signals, phases. All come from lab.spec or the
system; nothing is listed here by hand except the two shorthands ``ok`` and ``oom``."""

from __future__ import annotations

import difflib
import signal
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

SHORT_CODES = {"ok": "CUDA_SUCCESS", "oom": "CUDA_ERROR_OUT_OF_MEMORY"}


@cache
def hook_ids() -> dict[str, int]:
    """Hook name -> id, the one that history records carry."""
    from lab.spec import load_hooks

    return {hook.name: hook.id for hook in load_hooks().hooks}


@cache
def hook_names() -> tuple[str, ...]:
    """Hook names by id."""
    return tuple(hook_ids())


@cache
def signatures() -> Mapping[str, str]:
    """How each driver function takes its arguments, of names with a vendor prototype."""
    from lab.spec import load_signatures

    return load_signatures()


@cache
def profiles() -> tuple[str, ...]:
    """Names of the shipped GPU profiles."""
    from lab.spec import profile_names

    return tuple(profile_names())


def spoilt() -> tuple[str, ...]:
    """Functions whose outputs a fault can spoil."""
    from lab.spec.outputs import SPOILT

    return SPOILT


@cache
def drivers() -> tuple[str, ...]:
    """Driver generations that a fake node can claim, oldest first."""
    text = (resources.files("lab.spec") / "drivers.toml").read_text(encoding="utf-8")
    return tuple(sorted(tomllib.loads(text), key=lambda name: (int(name.partition("-")[0]), name)))


@cache
def dialects() -> tuple[str, ...]:
    """Names of the shipped dialects."""
    from lab.spec import dialect_names

    return tuple(dialect_names())


@cache
def codes() -> dict[str, int]:
    """Name -> code of both libraries, with ``ok`` and ``oom``."""
    from lab.spec import load_errors

    errors = load_errors()
    known = {entry.name: entry.code for table in (errors.nvml, errors.cuda) for entry in table}
    return known | {short: known[name] for short, name in SHORT_CODES.items()}


@cache
def skipped() -> int:
    """What a step ends with whose object was never made."""
    from lab.spec import load_layout

    return load_layout("history").constants["HL_STEP_SKIPPED"]


def code_name(code: int, hook: str = "cu") -> str:
    """What people call a result: ``ok``, ``oom``, CUDA_ERROR_... or NVML_ERROR_... by the library of ``hook``."""
    if code == skipped():
        return "skipped"
    short = {0: "ok"} if hook.startswith("nvml") else {0: "ok", 2: "oom"}
    if code in short:
        return short[code]
    prefix = "NVML_" if hook.startswith("nvml") else "CUDA_"
    for name, value in codes().items():
        if value == code and name.startswith(prefix):
            return name
    return f"code {code}"


@cache
def constants(layout: str, prefix: str) -> dict[str, int]:
    """Constants of a layout that start with ``prefix``, in lower case without it."""
    from lab.spec import load_layout

    found = load_layout(layout).constants
    return {name[len(prefix) :].lower(): value for name, value in found.items() if name.startswith(prefix)}


def points() -> dict[str, int]:
    """``point.before_lock`` -> number: sequence points of the built-in interposer and its region."""
    found = constants("history", "HL_POINT_")
    return {f"point.{name}": number for name, number in found.items() if number}


def fault_places() -> dict[str, int]:
    """Where a fault may be planned: driver functions and sequence points."""
    return hook_ids() | points()


def signals() -> dict[str, int]:
    """SIGKILL -> 9 ..."""
    return {name.name: int(name) for name in signal.Signals}


def nearest(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when something known is close, else an empty string."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
