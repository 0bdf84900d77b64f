"""Result codes of both driver libraries with their names and texts (`errors.toml`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.spec._toml import HERE, SpecError, check_keys, read


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One result code."""

    code: int
    name: str
    text: str


@dataclass(frozen=True)
class ErrorTable:
    """Codes of both libraries, ascending."""

    cuda: tuple[ErrorCode, ...]
    nvml: tuple[ErrorCode, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, ErrorCode]:
        """Every code of both libraries by its full name (CUDA_ERROR_..., NVML_ERROR_...)."""
        return {error.name: error for error in self.cuda + self.nvml}

    def name(self, library: str, code: int) -> str:
        """Name of a code of 'cuda' or 'nvml'; the number as text if the library has no such code."""
        for error in self.cuda if library == "cuda" else self.nvml:
            if error.code == code:
                return error.name
        return str(code)


@functools.cache
def load_errors(path: Path | None = None) -> ErrorTable:
    """The codes of this hooklab, or of another file of the same form."""
    path = path or HERE / "errors.toml"
    data = read(path)
    check_keys(path, "file", data, frozenset({"cuda", "nvml"}))
    return ErrorTable(_codes(path, "cuda", data), _codes(path, "nvml", data))


def _codes(path: Path, library: str, data: dict[str, dict[str, dict[str, object]]]) -> tuple[ErrorCode, ...]:
    codes: list[ErrorCode] = []
    for name, line in data.get(library, {}).items():
        check_keys(path, name, line, frozenset({"code", "text"}))
        code, text = line.get("code"), line.get("text")
        if not isinstance(code, int) or not isinstance(text, str) or not text:
            raise SpecError(f"{path}: {name}: needs code (integer) and text (string)")
        codes.append(ErrorCode(code, name, text))
    numbers = [error.code for error in codes]
    if len(set(numbers)) != len(numbers):
        raise SpecError(f"{path}: [{library}]: a code is listed twice; keep one name a code")
    return tuple(sorted(codes, key=lambda error: error.code))
