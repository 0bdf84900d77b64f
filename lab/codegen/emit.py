"""All generated files as text: `emit() -> {name: text}`. Pure, sorted, standard library only."""

from __future__ import annotations

from lab.codegen import _echo, _errors, _layouts, _names, _stubs, _vendor, _versions
from lab.spec import HookTable, layout_names, load_errors, load_hooks, load_layout


def emit(table: HookTable | None = None) -> dict[str, str]:
    """Every generated file by name, sorted."""
    table = table or load_hooks()
    files: dict[str, str] = {}
    for part in (
        _names.emit(table),
        _versions.emit(table),
        _layouts.emit([load_layout(name) for name in layout_names()]),
        _errors.emit(load_errors()),
        _stubs.emit(table),
        _echo.emit(table),
        _vendor.emit(),
    ):
        files.update(part)
    return dict(sorted(files.items()))
