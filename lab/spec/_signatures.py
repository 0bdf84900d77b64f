"""How each driver function takes its arguments: `signatures.toml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from lab.spec._toml import HERE, SpecError, read

_FORM = re.compile(r"(?:[ilphfd]|s\d+)*")


@functools.cache
def load_signatures() -> Mapping[str, str]:
    """Signature by name, of names that a vendor header declares. SpecError for a letter that means nothing."""
    path = HERE / "signatures.toml"
    found = read(path)
    for name, text in found.items():
        if not isinstance(text, str) or not _FORM.fullmatch(text):
            raise SpecError(f"{path}: {name}: {text!r} is no signature; write letters i, l, p, h, f, d or sN")
    return found
