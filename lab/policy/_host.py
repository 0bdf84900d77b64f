"""The engine's side of a policy: what the C host asks for once, when it starts.

Runs inside the private interpreter only. The C host holds the returned objects for the life of the process and calls
the methods one at a time.
"""

import sys

from lab.policy._load import PolicyError, load, one_line

# HL_ENGINE_HAS_* of engine.h, in the order of the optional methods in what `prepare` returns.
_OPTIONAL = (("settle", 1), ("release", 2), ("lease", 4), ("observe", 8))
_PACES_BLOCKS, _PACES_BOUNDED, _PACES_INSTEAD = 16, 32, 64  # HL_ENGINE_PACES_*
_PACING = ("lease", "observe")  # of the controller that HOOKLAB_PACING names, where it names one


def prepare(spec: str, pacing: str) -> tuple[object, ...]:
    """(features, admit, settle, release, lease, observe, bool, None, what to tell); absent methods are None.

    `pacing` is "" where no core limit applies, else "default" or what HOOKLAB_PACING says. A controller that cannot be
    used, or that does not exist, is told of in one line, and the default one applies: no limit is ever silently off.
    Raises PolicyError when the policy cannot be used or does not exist.
    """
    # A policy that prints would write into the streams of the process under test; with None print does nothing.
    sys.stdin = sys.stdout = sys.stderr = None
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
    sys.unraisablehook = lambda _: None
    if spec and not spec.startswith("/"):
        raise PolicyError(f"{spec}: the path of a policy file must be absolute")
    policy = load(spec)
    pacer: object = policy
    features, told = 0, ""
    if pacing:
        try:
            pacer = _pacer(policy, pacing)
        except PolicyError as error:
            from lab.policy.pacing import DEFAULT, load_pacing

            pacer = load_pacing(DEFAULT)
            told = f"HOOKLAB_PACING={pacing}: {error}; {DEFAULT} applies"
            features |= _PACES_INSTEAD
    methods: list[object] = []
    for name, bit in _OPTIONAL:
        method = getattr(pacer if name in _PACING else policy, name, None)
        methods.append(method)
        if method is not None:
            features |= bit
    if pacing:
        features |= _PACES_BLOCKS if getattr(pacer, "UNIT", "ns") == "blocks" else 0
        features |= _PACES_BOUNDED if getattr(pacer, "BOUNDED", True) else 0
    return (features, policy.admit, *methods, bool, None, told[:900])


def _pacer(policy: object, pacing: str) -> object:
    """The object that grants leases: the one named; for "default" the user's own policy where it paces, else hybrid."""
    from lab.policy._memory import MemoryPolicy
    from lab.policy.pacing import DEFAULT, load_pacing  # only a process with a core limit pays for it

    if pacing == "default":
        paces = hasattr(policy, "lease") and type(policy) is not MemoryPolicy
        return policy if paces else load_pacing(DEFAULT)
    if ":" in pacing and not pacing.startswith("/"):
        raise PolicyError("the path of a policy file must be absolute")
    return load_pacing(pacing)


def describe(error: BaseException) -> str:
    """One line for the log; never raises."""
    try:
        return one_line(error)[:900]
    except BaseException:
        return f"{type(error).__name__} (its text cannot be had)"
