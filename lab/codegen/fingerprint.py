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
    """What of a build.json no longer fits the sources, in words; empty when all of it does."""
    return ", ".join(WORDS[key] for key, value in current().items() if info.get(key) != value)
