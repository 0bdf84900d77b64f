"""Front doors to the vendor headers: cuda.h and nvml.h in the gen folder, found before the real ones.

They give the vendor's prototypes default visibility, so that a body in fakes/ or shim/ (compiled hidden) is exported
without an attribute on every definition; the linker's version script still decides what leaves the library.
"""

from __future__ import annotations

from lab.codegen._text import guard


def emit() -> dict[str, str]:
    files = {}
    for name in ("cuda.h", "nvml.h"):
        lines = ["#pragma GCC system_header", "#pragma GCC visibility push(default)", f"#include_next <{name}>"]
        body = "\n".join([*lines, "#pragma GCC visibility pop", ""])
        files[name] = guard(f"vendor_{name}", body)
    return files
