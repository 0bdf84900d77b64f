"""Which policy sources are these? The engine carries the answer of its build; commands compare it with this one."""

import hashlib
from pathlib import Path


def source_root() -> Path:
    """The folder of this package."""
    return Path(__file__).parent


def source_files() -> list[Path]:
    """The sources of this package and its subpackages in the order in which they are hashed and frozen."""
    return sorted(source_root().rglob("*.py"))


def source_hash() -> str:
    """16 hexadecimal digits over names and contents of all sources of this package."""
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source_root()).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
