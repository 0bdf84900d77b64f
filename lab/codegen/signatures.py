"""How each driver function takes its arguments, derived from the vendor headers by the compiler.

One letter a parameter: `i` 32-bit integer or enumeration, `l` 64-bit integer, `p` pointer, `h` handle or callback,
`f` float, `d` double, `s8` ... a structure of that many bytes by value. The result is kept in
`lab/spec/signatures.toml`; a test derives it again. Run as `python -m lab.codegen.signatures` to print it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from lab.codegen import compiler as cc
from lab.codegen import headers
from lab.codegen.build import DEFINES
from lab.spec import load_hooks

_DECLARED = re.compile(r"\b((?:cu|nvml)[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_KEYWORDS = frozenset({"int", "char", "short", "long", "unsigned", "signed", "float", "double", "void", "const"})
_HEADERS = ("cuda.h", "nvml.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
_PROGRAM = """#define CLASS(T) (__builtin_classify_type(*(T *)0) == 5 ? "h" : \\
    __builtin_classify_type(*(T *)0) == 8 ? (sizeof(T) == 4 ? "f" : "d") : \\
    __builtin_classify_type(*(T *)0) == 12 || __builtin_classify_type(*(T *)0) == 13 ? "s" : \\
    sizeof(T) == 8 ? "l" : "i")
#define SAY(T) do { printf("%s", CLASS(T)); if (CLASS(T)[0] == 's') printf("%zu", sizeof(T)); } while (0)
"""


def derive() -> dict[str, str]:
    """Signature by name, of every function of the table that a header declares."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = cc.find(Path(folder))
        found = headers.find()
        vendor = [flag for directory in found.directories for flag in ("-isystem", str(directory))]
        there = [name for name in _HEADERS if any((directory / name).is_file() for directory in found.directories)]
        including = "".join(f"#include <{name}>\n" for name in there[:2]) + "#include <stdio.h>\n"
        source = Path(folder) / "headers.c"
        source.write_text(including)
        command = [*compiler.command, *DEFINES, *vendor, str(source)]
        text = cc.run([*command, "-E", "-P"], "the vendor headers cannot be read")
        prototypes = {name: parameters(rest) for name, rest in _DECLARED.findall(text)}
        wanted = {hook.name for hook in load_hooks().hooks if hook.kind == "func"} & prototypes.keys()
        lines = [including, _PROGRAM, "int main(void) {\n"]
        for name in sorted(wanted):
            says = "".join(" " + ('printf("p");' if kind == "*" else f"SAY({kind});") for kind in prototypes[name])
            lines.append(f'    printf("{name} ");{says} printf("\\n");\n')
        lines.append("}\n")
        source.write_text("".join(lines))
        program = Path(folder) / "classes"
        cc.run([*command, "-w", "-o", str(program)], "the classes of parameters do not compile")
        said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: text for name, _, text in (line.partition(" ") for line in said.splitlines())}


def parameters(text: str) -> list[str]:
    """Types of a parameter list, in order; `*` for every pointer and array."""
    found: list[str] = []
    depth, start = 0, 0
    for at, sign in enumerate(text + ","):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return [_type(one) for one in found if one and one != "void"]


def _type(parameter: str) -> str:
    if "*" in parameter or "[" in parameter:
        return "*"
    words = parameter.split()
    if len(words) > 1 and words[-1] not in _KEYWORDS:
        words = words[:-1]
    return " ".join(words)


def main() -> None:
    """Prints the file's text."""
    print("# Arguments of the driver's functions, derived from the vendor headers by lab/codegen/signatures.py:")
    print("# i 32-bit integer, l 64-bit integer, p pointer, h handle, f float, d double, sN structure of N bytes.")
    for name, text in derive().items():
        print(f'{name} = "{text}"')


if __name__ == "__main__":
    main()
