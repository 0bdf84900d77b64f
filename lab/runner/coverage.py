"""Coverage by count: driver functions that a run called, those without behaviour, and those it never reached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.node.layout import NodeFileError, open_node_file
from lab.spec import Hook, load_hooks

SCHEMA = "hooklab.coverage/1"


class CoverageError(RuntimeError):
    """The run has no counts; the text is one line."""


@dataclass(frozen=True)
class Coverage:
    """Calls by name, of all processes of a run together."""

    called: dict[Hook, int]
    """Every name that was called, most often first."""
    without_behaviour: dict[Hook, int]
    """Those among them that only answered NOT_SUPPORTED."""
    unreached: tuple[Hook, ...]
    """Names with behaviour that nobody called."""

    def document(self) -> dict[str, Any]:
        """One JSON document."""
        return {
            "schema": SCHEMA,
            "called": {hook.name: count for hook, count in self.called.items()},
            "without_behaviour": {hook.name: count for hook, count in self.without_behaviour.items()},
            "unreached": [hook.name for hook in self.unreached],
        }


def read_coverage(run: str | Path) -> Coverage:
    """Counts from a run directory's copy of the node file. :class:`CoverageError` where there is none."""
    file = Path(run) / "node"
    if not file.is_file():
        raise CoverageError(f"{run}: no node file, so nothing was counted; a run on a real GPU has none")
    try:
        node = open_node_file(file)
    except NodeFileError as error:
        raise CoverageError(str(error)) from None
    try:
        counts = node.calls.astype("u8") + node.process_calls.sum(axis=0, dtype="u8")
        by_id = [int(count) for count in counts]
    finally:
        del counts
        node.close()
    hooks = load_hooks().hooks
    called = sorted(
        ((hook, by_id[hook.id]) for hook in hooks if by_id[hook.id]), key=lambda row: (-row[1], row[0].name)
    )
    return Coverage(
        called=dict(called),
        without_behaviour={hook: count for hook, count in called if hook.fake != "real"},
        unreached=tuple(hook for hook in hooks if hook.fake == "real" and hook.kind == "func" and not by_id[hook.id]),
    )


def lines(coverage: Coverage) -> list[str]:
    """In words: the calls, what had no behaviour, and how many names of each family were never reached."""
    found = [
        f"{count:>12,}  {hook.name}{'' if hook.fake == 'real' else '  (no behaviour)'}"
        for hook, count in coverage.called.items()
    ]
    found.append(f"{len(coverage.called)} names called, {len(coverage.without_behaviour)} of them without behaviour")
    found += [f"  {hook.name}: {count:,}" for hook, count in coverage.without_behaviour.items()]
    found.append(f"{len(coverage.unreached)} names with behaviour were never reached")
    families: dict[str, int] = {}
    for hook in coverage.unreached:
        key = f"{hook.library}.{hook.family}"
        families[key] = families.get(key, 0) + 1
    return found + [f"  {family}: {count}" for family, count in sorted(families.items())]
