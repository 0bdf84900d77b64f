"""What the code of a policy file may reach: a fixed set of modules and the builtins without input and output.

The set is the same in the engine (where nothing else exists: there is no standard library on its path) and here, so a
policy that loads in a test also loads in a process under test. It keeps honest code honest; it is no sandbox.
"""

import builtins

ALLOWED_MODULES = (
    "__future__",
    "_thread",
    "abc",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "errno",
    "functools",
    "heapq",
    "itertools",
    "operator",
    "sys",
    "time",
    "typing",
)
"""Modules that a policy may import, sorted. `math` is missing: many interpreters have it as a file on disk only."""

_WITHHELD = ("breakpoint", "copyright", "credits", "exit", "help", "input", "license", "open", "quit")


def _import(
    name: str,
    globals: dict[str, object] | None = None,  # noqa: A002 - the names of __import__ itself
    locals: dict[str, object] | None = None,  # noqa: A002
    fromlist: tuple[str, ...] | None = (),
    level: int = 0,
) -> object:
    if level or name not in ALLOWED_MODULES:
        shown = "." * level + name
        raise ImportError(f"a policy cannot import {shown}; available: {', '.join(ALLOWED_MODULES)}")
    return __import__(name, globals, locals, fromlist or (), 0)


def policy_builtins() -> dict[str, object]:
    """A fresh builtins namespace for the code of one policy file."""
    names = {name: value for name, value in vars(builtins).items() if name not in _WITHHELD}
    names["__import__"] = _import
    return names
