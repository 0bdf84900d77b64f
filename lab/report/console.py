"""Where reports for people go. Light on purpose: every command may import it."""

from __future__ import annotations

import os

from rich.console import Console


def console(*, width: int = 120) -> Console:
    """Standard output; where that is no terminal, lines are wide enough for logs ($COLUMNS wins)."""
    found = Console(highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = width
    return found
