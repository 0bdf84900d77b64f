"""Ways around a preloaded library that are no lookup route: each tried, each classified.

`cuGetExportTable` is asked for a table nobody has (the answer to a known one is the vendor's business), a library is
named for injection, and the interposer's file is searched for system calls it would need to see a bare ioctl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lab import native
from lab.hooks.model import OUT, Finding
from lab.hooks.static import read_library


class Session(Protocol):
    """What can walk under the interposer."""

    @property
    def folder(self) -> Path:
        """Where reports may lie."""

    def walk(self, host: str, *, interposed: bool, measure: bool = False, **variables: str) -> object:
        """A walk of one host."""


def classify(interposer: Path) -> list[Finding]:
    """What no walk can show; none of it is a fault."""
    return [*_export_table(interposer), *_outside(interposer)]


def injection(session: Session, interposer: Path) -> Finding:
    """A tool library that the driver itself loads in cuInit: who answers its lookups."""
    report, subject = session.folder / "injection", "CUDA_INJECTION64_PATH"
    plugin = str(native.path("libhooklab-routes.so"))
    variables = {subject: plugin, "HOOKLAB_INJECTION_REPORT": str(report)}
    session.walk("program", interposed=True, measure=True, **variables)
    try:
        answer = report.read_text(encoding="utf-8").strip()
    except OSError:
        return Finding("probe", subject, "this driver loads no injected tool: only a real one can show it", False)
    if Path(answer).name == interposer.name:
        return Finding("probe", subject, "an injected tool's lookups get the hooks", False)
    return Finding("probe", subject, f"an injected tool gets {answer}: it escapes", True)


def _export_table(interposer: Path) -> list[Finding]:
    library = read_library(interposer)
    if "cuGetExportTable" in library.exports:
        text = "hooked; what a table holds is the driver's own and not seen by any lookup"
    else:
        text = f"{OUT}: tables of the driver's internal functions pass untouched, on purpose"
    return [Finding("probe", "cuGetExportTable", text, False)]


def _outside(interposer: Path) -> list[Finding]:
    calls = sorted({"ioctl", "syscall", "open", "open64", "openat"} & read_library(interposer).others)
    seen = (
        f"it exports {', '.join(calls)}, inline system calls pass it all the same"
        if calls
        else "it sees no system call"
    )
    return [
        Finding("probe", "direct ioctl", f"{OUT}: {seen}", False),
        Finding("probe", "static program", f"{OUT}: the loader does not run, nothing is preloaded", False),
    ]
