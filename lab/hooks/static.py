"""The static side: what an interposer's file says about itself. Nothing of it is executed.

`read_library` reads the ELF file; `compare` sets its exports beside a driver's surface; `traits` names what the loader
will do with it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.hooks.model import Finding
from lab.spec import HookTable

_NAME = re.compile(r"(?:cu[A-Z]|cudbg|nvml[A-Z])\w*")
_GENERATION = re.compile(r"(.*?)(?:_v(\d+))?(_pt[ds][sz])?")
START_CODE = 1  # initialisers that the compiler's own start files put into every library


class StaticError(Exception):
    """A file that cannot be read as what it should be; one line."""


@dataclass(frozen=True, slots=True)
class Export:
    """One name of the driver's in an interposer's file."""

    name: str
    exported: bool
    """In the dynamic symbol table, defined and visible."""
    visibility: str
    version: str
    size: int


@dataclass(frozen=True)
class Library:
    """What a shared library says about itself."""

    path: Path
    symbols: Mapping[str, Export]
    """Names of the driver's that it defines, hidden ones too (as far as it was not stripped)."""
    others: frozenset[str]
    """Everything else that it exports."""
    undefined: frozenset[str]
    needed: tuple[str, ...]
    soname: str
    constructors: int
    """Initialisers beyond the compiler's own."""
    text_relocations: bool
    executable_stack: bool
    stripped: bool

    @property
    def exports(self) -> frozenset[str]:
        """Names of the driver's that it exports."""
        return frozenset(name for name, symbol in self.symbols.items() if symbol.exported)


@dataclass(frozen=True)
class Surface:
    """The names of one driver."""

    title: str
    names: frozenset[str]


@dataclass(frozen=True)
class Coverage:
    """An interposer's exports beside one surface; each list sorted."""

    surface: str
    covered: tuple[str, ...]
    missing: tuple[str, ...]
    """In the driver, not exported, and nobody decided that they pass."""
    passing: tuple[str, ...]
    """In the driver, not exported, by decision."""
    optional: tuple[str, ...]
    """Exported, known, but not in this driver."""
    unknown: tuple[str, ...]
    """Exported with a driver's prefix, known to nobody."""
    pairs: tuple[tuple[str, str], ...]
    """(hooked, not hooked): generations of one function; the driver has the newer one, the interposer does not."""
    walked_back: tuple[tuple[str, str], ...]
    """(newest exported, the one this driver has): the older one is hooked as well."""
    stranded: tuple[str, ...]
    """Exported newest variants that this driver lacks while its older one is not hooked."""


def read_library(path: Path) -> Library:
    """Reads a shared library. StaticError says why not."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as stream:
            elf: Any = ELFFile(stream)
            dynamic, table, static = (elf.get_section_by_name(name) for name in (".dynamic", ".dynsym", ".symtab"))
            if dynamic is None or table is None:
                raise StaticError(f"{path}: no dynamic symbols; give a shared library")
            versions = _versions(elf)
            symbols: dict[str, Export] = {}
            others, undefined = set(), set()
            for index, symbol in enumerate(table.iter_symbols()):
                name, info = symbol.name, symbol["st_info"]
                if symbol["st_shndx"] == "SHN_UNDEF":
                    undefined.add(name)
                elif info["bind"] in ("STB_GLOBAL", "STB_WEAK"):
                    visible = symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
                    if _NAME.fullmatch(name):
                        symbols[name] = Export(name, visible, _said(symbol), versions.get(index, ""), symbol["st_size"])
                    elif visible:
                        others.add(name)
            for symbol in static.iter_symbols() if static is not None else ():
                name = symbol.name
                function = symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
                if function and _NAME.fullmatch(name) and name not in symbols:
                    said = "local" if symbol["st_info"]["bind"] == "STB_LOCAL" else _said(symbol)
                    symbols[name] = Export(name, False, said, "", symbol["st_size"])
            tags = list(dynamic.iter_tags())
            flags = next((tag["d_val"] for tag in tags if tag["d_tag"] == "DT_FLAGS"), 0)
            stack = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK"]
            pointers = sum(tag["d_val"] // (elf.elfclass // 8) for tag in tags if tag["d_tag"] == "DT_INIT_ARRAYSZ")
            return Library(
                path=path,
                symbols=dict(sorted(symbols.items())),
                others=frozenset(others),
                undefined=frozenset(undefined),
                needed=tuple(tag.needed for tag in tags if tag["d_tag"] == "DT_NEEDED"),
                soname=next((tag.soname for tag in tags if tag["d_tag"] == "DT_SONAME"), ""),
                constructors=max(0, pointers - START_CODE),
                text_relocations=any(tag["d_tag"] == "DT_TEXTREL" for tag in tags) or bool(flags & 4),
                executable_stack=not stack or bool(stack[0]["p_flags"] & 1),
                stripped=static is None,
            )
    except (ELFError, KeyError) as error:
        raise StaticError(f"{path}: not an ELF shared library ({error})") from None
    except OSError as error:
        raise StaticError(f"{path}: {error.strerror}") from None


def _said(symbol: Any) -> str:
    return str(symbol["st_other"]["visibility"]).removeprefix("STV_").lower()


def _versions(elf: Any) -> dict[int, str]:
    """Version tag by symbol index; "@@" before the default one."""
    numbers = elf.get_section_by_name(".gnu.version")
    definitions = elf.get_section_by_name(".gnu.version_d")
    if numbers is None or definitions is None:
        return {}
    tags = {definition["vd_ndx"]: next(iter(names)).name for definition, names in definitions.iter_versions()}
    found = {}
    for index, entry in enumerate(numbers.iter_symbols()):
        number = entry["ndx"]
        if isinstance(number, int) and (number & 0x7FFF) in tags:
            found[index] = ("@" if number & 0x8000 else "@@") + tags[number & 0x7FFF]
    return found


def shipped(table: HookTable) -> Surface:
    """The exports of the driver that was measured."""
    return Surface("driver 580.159.04", frozenset(hook.name for hook in table.hooks if hook.fake != "absent"))


def read_surface(path: Path) -> Surface:
    """A driver's library, a stub, or a list of names (one a line; `#` and `[section]` lines are skipped)."""
    try:
        with path.open("rb") as stream:
            binary = stream.read(4) == b"\x7fELF"
        if binary:
            return Surface(str(path), read_library(path).exports)
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StaticError(f"{path}: {error.strerror}; give a driver library or a list of names") from None
    except UnicodeDecodeError:
        raise StaticError(f"{path}: neither an ELF file nor text; give a driver library or a list of names") from None
    words = [line.split()[-1] for line in lines if line.strip() and not line.lstrip().startswith(("#", "["))]
    wrong = next((word for word in words if not re.fullmatch(r"\w+(@.*)?", word)), None)
    if wrong:
        raise StaticError(f"{path}: {wrong!r} is no symbol; write one name a line")
    return Surface(str(path), frozenset(word.partition("@")[0] for word in words))


def compare(library: Library, surface: Surface, table: HookTable, passes: Mapping[str, str]) -> Coverage:
    """Coverage of one surface. `passes`: name -> reason of those that pass by decision."""
    exports, driver = library.exports, surface.names
    libraries = {prefix for prefix in ("cu", "nvml") if any(name.startswith(prefix) for name in driver)}
    mine = frozenset(name for name in exports if name.startswith(tuple(libraries)))
    absent = driver - exports
    pairs, back, stranded = [], [], []
    for variants in _generations(mine | driver).values():
        there = [name for name in variants if name in driver]
        hooked = [name for name in variants if name in mine]
        if not there or not hooked:
            continue
        newest = there[-1]
        if newest not in mine and any(name in driver for name in hooked):
            pairs.append((hooked[-1], newest))
        if hooked[-1] not in driver:
            if newest in mine:
                back.append((hooked[-1], newest))
            else:
                stranded.append(hooked[-1])
    return Coverage(
        surface=surface.title,
        covered=tuple(sorted(mine & driver)),
        missing=tuple(sorted(name for name in absent if _NAME.fullmatch(name) and not passes.get(name))),
        passing=tuple(sorted(name for name in absent if passes.get(name))),
        optional=tuple(sorted(name for name in mine - driver if name in table.by_name)),
        unknown=tuple(sorted(name for name in mine - driver if name not in table.by_name)),
        pairs=tuple(sorted(pairs)),
        walked_back=tuple(sorted(back)),
        stranded=tuple(sorted(stranded)),
    )


def _generations(names: frozenset[str]) -> dict[tuple[str, str], list[str]]:
    """Names of one function and stream class, oldest first."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        match = _GENERATION.fullmatch(name)
        assert match is not None
        found[match[1], match[3] or ""].append((int(match[2] or 1), name))
    return {key: [name for _, name in sorted(variants)] for key, variants in found.items()}


def traits(library: Library, *, declared: Sequence[str] = ()) -> list[Finding]:
    """What is worth knowing, or wrong, about the file itself."""
    found = []

    def say(kind: str, text: str, *, fault: bool = True, subject: str = "") -> None:
        found.append(Finding(kind, subject or library.path.name, text, fault))

    hidden = [name for name, symbol in library.symbols.items() if not symbol.exported]
    if not library.exports:
        what = (
            f"all {len(hidden)} of its hooks are hidden (a build with hidden visibility)"
            if hidden
            else (
                "no driver name is exported or even defined (stripped, or hidden by a macro)"
                if library.stripped
                else "no driver name is defined: what should hook them was compiled out"
            )
        )
        say("intercepts-nothing", f"no relocation reaches it: {what}")
    elif hidden:
        known = ", ".join(hidden[:6]) + (f" and {len(hidden) - 6} more" if len(hidden) > 6 else "")
        say("hidden-hooks", f"{len(hidden)} driver names are defined and not exported: {known}")
    lost = sorted(set(declared) - library.exports)
    if lost:
        known = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if len(lost) > 6 else "")
        say("declared-not-exported", f"{len(lost)} names that the project hooks are not exported: {known}")
    for prefix, title in (("cu", "CUDA"), ("nvml", "NVML")):
        promised = [name for name in declared if name.startswith(prefix)]
        if promised and library.exports and not any(name.startswith(prefix) for name in library.exports):
            say("library-lost", f"the project hooks {title} names and the file exports none of them", subject=title)
    if "dlsym" not in library.others:
        say("no-dlsym", "dlsym is not exported: every pointer got by name from a handle is the driver's")
    elif "dlvsym" not in library.others:
        say(
            "no-dlvsym",
            "dlvsym is not exported: with libc's own dlsym, got by its version tag, every lookup escapes",
            fault=False,
        )
    resolvers = {"cuGetProcAddress", "cuGetProcAddress_v2"}
    if library.exports and not resolvers & library.exports:
        say("no-resolver", "no generation of cuGetProcAddress is exported: runtimes from CUDA 11.3 on escape")
    elif library.exports and resolvers - library.exports:
        say("one-resolver", f"{(resolvers - library.exports).pop()} is not exported: runtimes that use it escape")
    drivers = [name for name in library.needed if name.startswith(("libcuda.so", "libnvidia-ml.so"))]
    if drivers:
        say("needs-driver", f"needs {' and '.join(drivers)} to load: where no driver is, no program starts")
    if library.text_relocations:
        say("text-relocations", "its code is changed when it is loaded: refused where that is forbidden")
    if library.executable_stack:
        say("executable-stack", "it asks for an executable stack")
    if library.constructors:
        say("constructors", f"{library.constructors} initialisers run in every process that loads it", fault=False)
    if library.stripped:
        say("stripped", "no symbol table: hidden hooks cannot be told from missing ones", fault=False)
    return found
