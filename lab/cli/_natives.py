"""Natives that fit the sources: commands that use them stop early, with the command that mends it."""

from __future__ import annotations

import click


def require() -> None:
    """Raises a one-line error when the natives are missing or were built from other sources."""
    from lab import native
    from lab.codegen import fingerprint

    stale = fingerprint.difference(native.build_info())
    if stale:
        raise click.ClickException(f"natives were built from other {stale}; rebuild with: {native.REBUILD}")
