"""Which libpython the engine is built over, and how.

Two variants. ``static``: an archive of position-independent objects is linked into the engine with all its symbols
hidden. ``copy``: a private copy of the shared library lies beside the engine; its DT_SONAME entry is turned into
DT_SYMBOLIC, so that the library binds to its own symbols although the host may have a libpython of its own, and so that
a host that later opens ``libpython3.X.so.1.0`` by name does not get ours.

Whether an archive is position independent is not written anywhere: a link probe tells. Always for the interpreter that
runs this module, whose headers must match (PyConfig and bytecode differ between minor versions).
"""

import os
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Variant = Literal["static", "copy"]
COPY_NAME = "libhooklab-python.so"

COMPILE_FLAGS = ("-fvisibility=hidden", "-fPIC", "-ftls-model=initial-exec")
LINK_FLAGS = (
    "-shared",
    "-Wl,--exclude-libs,ALL",  # without it a Python host of another version binds to our interpreter and crashes
    "-Wl,-z,defs",
    "-Wl,-Bsymbolic",
    "-Wl,-z,now",
    "-Wl,-z,relro",
    "-Wl,-z,noexecstack",
    "-Wl,-z,nodelete",  # threads and key destructors refer to it for ever
    "-Wl,-z,text",
    "-Wl,--strip-debug",  # an archive carries tens of megabytes of it
)

_PROBE = """\
#include <Python.h>
__attribute__((visibility("default"))) int hl_probe(void);
int hl_probe(void) { PyConfig config; PyConfig_InitIsolatedConfig(&config); return (int)Py_IsInitialized(); }
"""


class LibpythonError(Exception):
    """No libpython fits. One line that names what to install."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to compile and link the engine: ``cc COMPILE sources LINK`` gives ``libhooklab-engine.so``."""

    variant: Variant
    version: str  # "3.11"
    headers: Path  # directory of Python.h
    library: Path  # the archive, or the shared library that `install_copy` copies
    compile_flags: tuple[str, ...]  # warnings, optimisation and our own -I are the build driver's
    link_flags: tuple[str, ...]  # after the objects, in this order

    def install_copy(self, directory: Path) -> Path | None:
        """Copy variant: writes the private copy beside the engine and returns its path; static: None."""
        return copy_library(self.library, directory / COPY_NAME) if self.variant == "copy" else None


def plan(variant: str | None = None, *, compiler: Iterable[str] | None = None) -> Plan:
    """The plan for `variant`, or where that is None for $HOOKLAB_ENGINE, or else static where an archive allows it
    and a copy where none does. `compiler` is the C compiler's command, by default $CC or cc.

    Raises `LibpythonError` with one line when there is no such library, compiler or header.
    """
    variant = variant or os.environ.get("HOOKLAB_ENGINE") or None
    if variant not in (None, "static", "copy"):
        raise LibpythonError(f"HOOKLAB_ENGINE={variant}: write static or copy")
    command = tuple(compiler or shlex.split(os.environ.get("CC", "cc")))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if shutil.which(command[0]) is None:
        raise LibpythonError(f"{command[0]}: no such C compiler; install gcc (Debian: apt install gcc) or set CC")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        headers = Path(str(sysconfig.get_config_var("INCLUDEPY")))
    if not (headers / "Python.h").exists():
        raise LibpythonError(f"{headers}: no Python.h; install the headers of Python {version} ({_package(version)})")
    reasons: list[str] = []
    if variant in (None, "static"):
        for archive, libraries in _archives(version):
            flags = (str(archive), *libraries)
            reason = _probe(command, headers, flags)
            if not reason:
                return Plan(
                    variant="static",
                    version=version,
                    headers=headers,
                    library=archive,
                    compile_flags=(*COMPILE_FLAGS, f"-I{headers}"),
                    link_flags=(*LINK_FLAGS, *flags),
                )
            reasons.append(f"{archive}: {reason}")
    if variant in (None, "copy"):
        for shared in _shared_libraries(version):
            return Plan(
                variant="copy",
                version=version,
                headers=headers,
                library=shared,
                compile_flags=(*COMPILE_FLAGS, f"-I{headers}", "-DHL_ENGINE_COPY=1"),
                link_flags=(*LINK_FLAGS, "-ldl", "-lpthread"),
            )
        reasons.append("no shared libpython")
    seen = "; ".join(reasons) or "no libpython archive"
    raise LibpythonError(
        f"Python {version} ({sys.executable}) cannot be embedded ({seen}); install {_package(version)} or use a Python "
        "built with --enable-shared"
    )


def _package(version: str) -> str:
    return f"libpython{version}-dev"


def _archives(version: str) -> Iterable[tuple[Path, tuple[str, ...]]]:
    """Candidates with the libraries that they need, best first."""
    system = tuple(
        flag
        for name in ("LIBS", "SYSLIBS")
        for flag in shlex.split(str(sysconfig.get_config_var(name) or ""))
        if flag.startswith("-l")
    )
    libraries = tuple(dict.fromkeys((*system, "-lpthread", "-ldl", "-lm")))
    places = [Path(str(value)) for key in ("LIBPL", "LIBDIR") if (value := sysconfig.get_config_var(key))]
    for place in places:
        pic = place / f"libpython{version}-pic.a"
        if pic.exists():
            yield pic, (*libraries, "-lexpat", "-lz")
    for place in places:
        plain = place / f"libpython{version}.a"
        if plain.exists():
            yield plain, libraries


def _shared_libraries(version: str) -> Iterable[Path]:
    name = str(sysconfig.get_config_var("INSTSONAME") or f"libpython{version}.so.1.0")
    names = (name, f"libpython{version}.so.1.0", f"libpython{version}.so")
    places = [str(sysconfig.get_config_var(key) or "") for key in ("LIBDIR", "LIBPL")]
    triplet = str(sysconfig.get_config_var("MULTIARCH") or "")
    places += [str(Path(sys.base_prefix) / "lib"), str(Path(sys.base_prefix) / "lib" / triplet)]
    for place in places:
        for candidate in names:
            path = Path(place) / candidate
            if place and ".so" in candidate and path.is_file():
                yield path.resolve()


def _probe(compiler: tuple[str, ...], headers: Path, flags: tuple[str, ...]) -> str:
    """Empty when a library with hidden symbols links against the archive, else the linker's first complaint."""
    with tempfile.TemporaryDirectory(prefix="hooklab-probe-") as directory:
        source, target = Path(directory) / "probe.c", Path(directory) / "probe.so"
        source.write_text(_PROBE)
        result = subprocess.run(
            [*compiler, *COMPILE_FLAGS, f"-I{headers}", str(source), "-o", str(target), *LINK_FLAGS, *flags],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "LC_ALL": "C"},
        )
    if result.returncode == 0:
        return ""
    lines = [line for line in result.stderr.splitlines() if "relocation" in line or "cannot find" in line]
    lines = lines or [line for line in result.stderr.splitlines() if "undefined" in line or "error" in line]
    if any("relocation" in line for line in lines):
        return "not position independent"
    return lines[0].strip() if lines else f"the linker failed with status {result.returncode}"


_DT_NULL, _DT_SONAME, _DT_SYMBOLIC = 0, 14, 16
_PT_DYNAMIC = 2


def without_soname(image: bytes) -> bytes:
    """An ELF64 little-endian shared library with its DT_SONAME entry turned into DT_SYMBOLIC; same size, same layout.

    Raises `LibpythonError` when the image is something else or has no or several DT_SONAME entries.
    """
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64:
        raise LibpythonError("not a 64-bit little-endian ELF file")
    data = bytearray(image)
    (offset,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    dynamic = None
    for index in range(count):
        at = offset + index * entry_size
        if at + 56 > len(data):
            raise LibpythonError("truncated ELF file")
        (kind,) = struct.unpack_from("<I", data, at)
        if kind == _PT_DYNAMIC:
            dynamic = struct.unpack_from("<Q", data, at + 8)[0], struct.unpack_from("<Q", data, at + 32)[0]
    if dynamic is None or sum(dynamic) > len(data):
        raise LibpythonError("no dynamic section: not a shared library")
    changed = 0
    for at in range(dynamic[0], dynamic[0] + dynamic[1] - 15, 16):
        (tag,) = struct.unpack_from("<q", data, at)
        if tag == _DT_NULL:
            break
        if tag == _DT_SONAME:
            struct.pack_into("<qQ", data, at, _DT_SYMBOLIC, 0)
            changed += 1
    if changed != 1:
        raise LibpythonError(f"{changed} DT_SONAME entries where one was expected")
    return bytes(data)


def copy_library(source: Path, target: Path) -> Path:
    """Writes the private copy of a libpython atomically and returns its path."""
    try:
        data = without_soname(source.read_bytes())
    except LibpythonError as error:
        raise LibpythonError(f"{source}: {error}") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target
