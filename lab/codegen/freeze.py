"""Python modules as C data: the modules that the engine's interpreter has, and the hash of the policies among them.

The engine finds no standard library on disk, so whatever a policy may import must be in here, with everything that
those modules import in turn. The header fits one minor version of Python only: the one that runs this module, whose
headers and library the engine is built with. `emit` is pure and sorted; two builds of one tree give equal bytes.
"""

import _imp
import ast
import json
import marshal
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lab.policy
from lab.codegen._write import write_text
from lab.policy._hash import source_files, source_hash, source_root

HEADER = "hl_frozen.h"
_ALWAYS = ("encodings", "encodings.aliases", "encodings.utf_8")
# What the allowed modules import inside their functions; a test imports and uses all of them without a disk.
_LAZY = ("types", "weakref", "warnings", "reprlib", "copy", "inspect", "contextlib", "re")
_IMPORT_ALL = """\
import sys
for name in sys.argv[1:]:
    __import__(name)
import json
from importlib.machinery import PathFinder
seen = []
for name, module in sorted(sys.modules.items()):
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name:  # an alias, or a module that put another in its place (collections.abc)
        parent = sys.modules.get(name.rpartition(".")[0])
        spec = PathFinder.find_spec(name, parent.__path__) if hasattr(parent, "__path__") else None
    if spec is not None:
        seen.append([name, spec.origin or "", spec.submodule_search_locations is not None])
print(json.dumps(seen))
"""
_ERRORS = Path(__file__).parents[1] / "spec" / "errors.toml"


@dataclass(frozen=True, kw_only=True)
class Module:
    """One module to freeze: its source text and whether it is a package."""

    name: str
    source: str
    package: bool = False


def standard_modules() -> tuple[Module, ...]:
    """The allowed modules and all that they import, as far as this interpreter neither has them built in nor frozen.

    The closure is seen by importing them in a bare child interpreter. Accelerators that are files on disk (_heapq,
    _bisect ...) are left out: each has its fallback in Python. `_opcode`, which dataclasses cannot do without on
    some versions, is replaced by its own answers.
    """
    wanted = sorted({*lab.policy.ALLOWED_MODULES, *_ALWAYS, *_LAZY})
    child = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _IMPORT_ALL, *wanted], capture_output=True, text=True, check=True, timeout=60
    )
    modules = []
    for name, origin, package in json.loads(child.stdout):
        if name in sys.builtin_module_names or _imp.find_frozen(name) is not None:
            continue
        if name == "_opcode":
            modules.append(Module(name=name, source=_opcode_source()))
        elif origin.endswith(".py"):
            modules.append(Module(name=name, source=Path(origin).read_text(encoding="utf-8"), package=package))
    return tuple(modules)


def _opcode_source() -> str:
    """A module in Python that answers what `_opcode` answers about this interpreter's opcodes."""
    import _opcode

    lines = ['"""The opcode tables of the interpreter that this was generated from."""']
    for name in sorted(vars(_opcode)):
        value = getattr(_opcode, name)
        if name.startswith(("has_", "is_")):
            codes = frozenset(code for code in range(512) if value(code))
            lines.append(f"def {name}(opcode, codes=frozenset({sorted(codes)!r})):\n    return opcode in codes")
        elif name in ("get_intrinsic1_descs", "get_intrinsic2_descs", "get_nb_ops"):
            lines.append(f"def {name}():\n    return {value()!r}")
        elif callable(value):
            lines.append(f"def {name}(*arguments, **options):\n    raise NotImplementedError('{name}')")
        elif isinstance(value, bool | int | str) and not name.startswith("__"):
            lines.append(f"{name} = {value!r}")
    text = "\n".join(lines) + "\n"
    ast.parse(text)
    return text


def policy_modules() -> tuple[Module, ...]:
    """`lab` (empty: the version is no part of a policy) and every source of `lab.policy`."""
    modules = [Module(name="lab", source="", package=True)]
    for path in source_files():
        package = path.stem == "__init__"
        inner = path.relative_to(source_root()).with_suffix("").parts
        name = ".".join(("lab", "policy", *(inner[:-1] if package else inner)))
        modules.append(Module(name=name, source=path.read_text(encoding="utf-8"), package=package))
    return tuple(modules)


def admit_codes(path: Path = _ERRORS) -> tuple[int, ...]:
    """The codes of all CUresults, sorted: the only numbers that are an answer of `admit`."""
    with path.open("rb") as file:
        return tuple(sorted({int(entry["code"]) for entry in tomllib.load(file)["cuda"].values()}))


def emit(
    *, modules: Sequence[Module] | None = None, codes: Iterable[int] | None = None, policy_hash: str | None = None
) -> Mapping[str, str]:
    """The header ``hl_frozen.h`` as {file name: text}; by default of the policies in this tree."""
    if modules is None:
        modules = (*standard_modules(), *policy_modules())
    codes = sorted(set(admit_codes() if codes is None else codes))
    policy_hash = source_hash() if policy_hash is None else policy_hash
    lines = [
        "/* Generated: the frozen modules of the engine. Do not edit. */",
        f"#if PY_VERSION_HEX >> 16 != 0x{sys.hexversion >> 16:04X}",
        f'#error "frozen by Python {sys.version_info[0]}.{sys.version_info[1]}: use the headers of that version"',
        "#endif",
        f'#define HL_POLICY_HASH "{policy_hash}"',
        f'#define HL_ENGINE_PYTHON "{platform.python_version()}"',
        f"#define HL_ADMIT_CODES {len(codes)}",
        f"static const short hl_admit_codes[HL_ADMIT_CODES] = {{{', '.join(map(str, codes))}}};",
    ]
    table = []
    for module in sorted(modules, key=lambda module: module.name):
        code = compile(module.source, f"<frozen {module.name}>", "exec", dont_inherit=True, optimize=2)
        data = marshal.dumps(code)
        symbol = f"hl_frozen_{module.name.replace('.', '_dot_')}"
        lines.append(f"static const unsigned char {symbol}[{len(data) + 1}] =")
        lines.extend(f'    "{text}"' for text in _literals(data))
        lines[-1] += ";"
        package = ", .is_package = 1" if module.package else ""
        table.append(f'    {{.name = "{module.name}", .code = {symbol}, .size = {len(data)}{package}}},')
    lines += ["static const struct _frozen hl_frozen_modules[] = {", *table, "    {0},", "};", ""]
    return {HEADER: "\n".join(lines)}


def _literals(data: bytes, width: int = 64) -> Iterable[str]:
    """String literals: compilers read them much faster than lists of numbers. Octal: no digit can join an escape."""
    for start in range(0, len(data), width):
        yield "".join(f"\\{byte:03o}" for byte in data[start : start + width])


def write(directory: Path, files: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Writes what `emit` returns into `directory`, each file atomically and only where its content changes."""
    directory.mkdir(parents=True, exist_ok=True)
    files = emit() if files is None else files
    for name, text in sorted(files.items()):
        write_text(directory / name, text)
    return tuple(directory / name for name in sorted(files))
