"""The one way a build fails: a single line that says what is missing and how to get it."""

from __future__ import annotations


class BuildError(Exception):
    """A build that cannot go on; the text is one line that names the package to install or the file at fault."""
