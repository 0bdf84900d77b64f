"""What natives were built from, as hashes: an editable clone can change under natives that no longer fit it."""

from __future__ import annotations

from collections.abc import Mapping

from lab.policy._hash import source_hash
from lab.spec import layout_names, load_hooks, load_layout
from lab.spec._toml import fnv1a

WORDS = {
    "layouts_hash": "byte layouts (lab/spec/layouts)",
    "names_hash": "hook table (lab/spec/hooks.toml)",
    "policy_hash": "policies (lab/policy)",
}


def current() -> dict[str, str]:
    """The hashes of the sources that are imported now."""
    layouts = "\n".join(f"{name} {load_layout(name).hash:016x}" for name in layout_names())
    return {
        "layouts_hash": f"{fnv1a(layouts):016x}",
        "names_hash": f"{load_hooks().hash:016x}",
        "policy_hash": source_hash(),
    }


def difference(info: Mapping[str, object]) -> str:
    """What of a build.json no longer fits the sources, in words; empty when all of it does.

    Only the engine has policies in it; every target has the names and the layouts.
    """
    built_from = info.get("built_from")
    if not isinstance(built_from, Mapping) or not built_from:
        return "everything (build.json says nothing about its sources)"
    now = current()
    stale = {
        key
        for target, hashes in built_from.items()
        for key, value in now.items()
        if hashes.get(key) != value and (key != "policy_hash" or target == "engine")
    }
    return ", ".join(WORDS[key] for key in sorted(stale))
