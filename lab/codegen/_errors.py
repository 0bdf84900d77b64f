"""Result codes: hl_errors.h/.c."""

from __future__ import annotations

from lab.codegen._text import HEADER, guard, quote
from lab.spec import ErrorTable

_HEADER = """/* Result codes of both libraries: static text, NULL for a code the library does not have. */
const char *hl_cuda_error_name(int code);
const char *hl_cuda_error_text(int code);
const char *hl_nvml_error_name(int code);
const char *hl_nvml_error_text(int code);
"""


def emit(errors: ErrorTable) -> dict[str, str]:
    functions = []
    for library, codes in (("cuda", errors.cuda), ("nvml", errors.nvml)):
        for what in ("name", "text"):
            cases = "".join(f"    case {error.code}: return {quote(getattr(error, what))};\n" for error in codes)
            functions.append(
                f"const char *hl_{library}_error_{what}(int code) {{\n    switch (code) {{\n{cases}"
                "    default: return NULL;\n    }\n}\n"
            )
    source = f'{HEADER}#include "hl_errors.h"\n#include <stddef.h>\n\n' + "\n".join(functions)
    return {"hl_errors.h": guard("hl_errors.h", _HEADER), "hl_errors.c": source}
