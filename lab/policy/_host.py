"""The engine's side of a policy: what the C host asks for once, when it starts.

Runs inside the private interpreter only. The C host holds the returned objects for the life of the process and calls
the methods one at a time.
"""

import sys

from lab.policy._load import PolicyError, load, one_line

# HL_ENGINE_HAS_* of engine.h, in the order of the optional methods in what `prepare` returns.
_OPTIONAL = (("settle", 1), ("release", 2), ("lease", 4), ("observe", 8))
_PACING = ("lease", "observe")  # of the controller that HOOKLAB_PACING names, where it names one


def prepare(spec: str, pacing: str) -> tuple[object, ...]:
    """(features, admit, settle, release, lease, observe, bool, None); absent methods are None.

    Raises PolicyError when the policy cannot be used or a controller is named that does not exist.
    """
    # A policy that prints would write into the streams of the process under test; with None print does nothing.
    sys.stdin = sys.stdout = sys.stderr = None
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
    sys.unraisablehook = lambda _: None
    if spec and not spec.startswith("/"):
        raise PolicyError(f"{spec}: the path of a policy file must be absolute")
    policy = load(spec)
    pacer: object = policy
    if pacing:
        from lab.policy.pacing import load_pacing  # only where it is asked for: it costs the start

        try:
            pacer = load_pacing(pacing)
        except PolicyError as error:
            raise PolicyError(f"HOOKLAB_PACING={pacing}: {error}") from None
    features = 0
    methods: list[object] = []
    for name, bit in _OPTIONAL:
        method = getattr(pacer if name in _PACING else policy, name, None)
        methods.append(method)
        if method is not None:
            features |= bit
    return (features, policy.admit, *methods, bool, None)


def describe(error: BaseException) -> str:
    """One line for the log; never raises."""
    try:
        return one_line(error)[:900]
    except BaseException:
        return f"{type(error).__name__} (its text cannot be had)"
