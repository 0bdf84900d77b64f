"""Turns a policy's name into an object: read, compile and execute its file under the rules of `_rules`."""

import builtins
import sys

from lab.policy._memory import MemoryPolicy
from lab.policy._rules import policy_builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lab.policy._protocol import Policy


class PolicyError(Exception):
    """A policy cannot be used. One line: file and position, what is wrong."""


def one_line(error: BaseException, path: str = "") -> str:
    """``file:line: Type: message`` of an exception, at its innermost frame outside this package and the frozen modules.

    `path` stands for the position where there is no such frame.
    """
    if isinstance(error, PolicyError):
        return str(error)
    where = f"{path}: " if path else ""
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno or 1}:{error.offset or 1}: "
        text = error.msg
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<frozen", _HERE)) and not isinstance(error, SyntaxError):
            where = f"{name}:{trace.tb_lineno}: "
        trace = trace.tb_next
    line = f"{where}{type(error).__name__}: {text}" if text else f"{where}{type(error).__name__}"
    return " ".join(line.split())


_HERE = one_line.__code__.co_filename.rpartition("_load")[0]


def load(spec: str = "") -> "Policy":
    """An instance of the policy that `spec` names: "" for the built-in one, else ``file.py:Class``.

    The file is executed with builtins and `ALLOWED_MODULES` only. Raises `PolicyError` with one line that says what
    is wrong and where.
    """
    if not spec:
        return MemoryPolicy()
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise PolicyError(f"{spec}: not a policy; write /path/to/file.py:Class")
    try:
        with builtins.open(path, "rb") as file:
            source = file.read()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise PolicyError(f"{path}: cannot read the policy file: {cause}") from None
    module = type(sys)(f"hooklab_policy:{path}")  # registered, because dataclasses look their module up by name
    module.__file__ = path
    module.__dict__["__builtins__"] = policy_builtins()
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise PolicyError(one_line(error, path)) from None
    kind = module.__dict__.get(name)
    if not isinstance(kind, type):
        known = ", ".join(sorted(key for key, value in module.__dict__.items() if _is_own(value, module.__name__)))
        raise PolicyError(f"{path}: no class {name}; it defines: {known or 'none'}")
    try:
        policy = kind()
    except (Exception, SystemExit) as error:
        raise PolicyError(one_line(error, path)) from None
    for method in ("admit", "lease", "observe", "settle", "release"):
        found = getattr(policy, method, None)
        if found is None and method != "admit":
            continue
        if not callable(found):
            raise PolicyError(f"{path}: class {name} has no method {method}; see the docstring of lab.policy")
    return policy  # type: ignore[no-any-return]


def _is_own(value: object, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module
