"""Byte layouts: C and numpy agree on every offset; what breaks a layout is refused in one line.

Strategy: a generated C program prints offsetof and sizeof of every field as its compiler sees them, and is compared
with the numpy dtypes. The static asserts of the headers are proven by a header that lies.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.codegen._layouts import emit, identifier
from lab.spec import Layout, SpecError, layout_names, load_layout, read_layout

SMALL = """
name = "small"
[constants]
HL_SMALL = 3
[[struct]]
name = "hl_small"
size = 16
fields = [
    {name = "a", type = "u32", offset = 0, doc = "first"},
    {name = "b", type = "u32", offset = 4},
    {name = "c", type = "u64", offset = 8},
]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "small.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", layout_names())
def test_numpy_and_c_agree(name: str, compile_c: Callable[..., Path]) -> None:
    layout = load_layout(name)
    lines = [f'#include "hl_layout_{identifier(name)}.h"', "#include <stdio.h>", "int main(void) {"]
    lines.append(f'    printf("hash %llu\\n", (unsigned long long)HL_{identifier(name).upper()}_HASH);')
    for constant in layout.constants:
        lines.append(f'    printf("{constant} %llu\\n", (unsigned long long){constant});')
    for struct in layout.structs.values():
        lines.append(f'    printf("{struct.name} %zu\\n", sizeof(struct {struct.name}));')
        for field in struct.fields:
            member = f"((struct {struct.name} *)0)->{field.name}"
            lines.append(
                f'    printf("{struct.name}.{field.name} %zu %zu\\n", '
                f"offsetof(struct {struct.name}, {field.name}), sizeof({member}));"
            )
    program = compile_c("\n".join([*lines, "    return 0;", "}", ""]), name=f"layout-{name}")
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()

    expected = [f"hash {layout.hash}"] + [f"{key} {value % 2**64}" for key, value in layout.constants.items()]
    for struct in layout.structs.values():
        dtype = layout.dtype(struct.name)
        expected.append(f"{struct.name} {dtype.itemsize}")
        assert dtype.fields is not None
        for member, (part, offset, *_) in dtype.fields.items():
            expected.append(f"{struct.name}.{member} {offset} {part.itemsize}")
    assert printed == expected


def test_static_asserts_catch_a_compiler_that_disagrees(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    header = emit([read_layout(write(tmp_path, SMALL))])["hl_layout_small.h"]
    program = '#include "hl_planted.h"\nint main(void) { return 0; }\n'
    (tmp_path / "hl_planted.h").write_text(header)
    compile_c(program, f"-I{tmp_path}", name="honest")
    (tmp_path / "hl_planted.h").write_text(header.replace("uint32_t a;", "uint64_t a;"))
    with pytest.raises(AssertionError, match="static assertion failed"):
        compile_c(program, f"-I{tmp_path}", name="planted")


def test_the_region_of_hami_is_where_others_expect_it() -> None:
    layout = load_layout("hami-1.2")
    region = layout.structs["hl_hami_region"]
    assert region.size == 2_008_952
    assert layout.constants["HL_HAMI_FILE_BYTES"] == region.size + 1
    assert [region[name].offset for name in ("limit", "sm_limit", "procs")] == [1600, 1728, 1856]
    assert layout.constants["HL_HAMI_MAGIC"] == 19920718


def test_hash_sees_every_byte_that_matters_and_no_doc(tmp_path: Path) -> None:
    def hash_of(text: str) -> int:
        return read_layout(write(tmp_path, text)).hash

    base = hash_of(SMALL)
    assert hash_of(SMALL.replace('doc = "first"', 'doc = "other"')) == base
    changed = [
        SMALL.replace('"a"', '"z"'),
        SMALL.replace('type = "u64"', 'type = "i64"'),
        SMALL.replace("HL_SMALL = 3", "HL_SMALL = 4"),
        SMALL.replace('type = "u64", offset = 8', 'type = "u32", offset = 8, count = 2'),
    ]
    assert len({base, *map(hash_of, changed)}) == len(changed) + 1
    assert base == 0x9B69E07C01C0F4FE  # written down: two builds of one layout must agree for ever


def test_dtype_reads_what_c_wrote(compile_c: Callable[..., Path]) -> None:
    text = """#include "hl_layout_history.h"
#include <stdio.h>
int main(void) {
    struct hl_history_record record = {.time_ns = 1, .a = UINT64_MAX, .pid = 7, .result = -1, .name = 0xFFFF,
                                       .event = HL_EVENT_PHYS, .commit = 1};
    return fwrite(&record, sizeof record, 1, stdout) != 1;
}
"""
    data = subprocess.run([str(compile_c(text, name="writer"))], capture_output=True, check=True).stdout
    record = np.frombuffer(data, load_layout("history").dtype("hl_history_record"))[0]
    assert (record["time_ns"], record["a"], record["pid"], record["result"]) == (1, 2**64 - 1, 7, -1)
    assert (record["name"], record["event"], record["commit"], record["b"]) == (0xFFFF, 4, 1, 0)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"b", type = "u32", offset = 4', '"b", type = "u64", offset = 0', "overlaps the field before it"),
        ('"b", type = "u32", offset = 4', '"b", type = "u32", offset = 2', "not a multiple of 4"),
        ('"b", type = "u32", offset = 4', '"b", type = "u16", offset = 4', "gap of 2 bytes"),
        ('"b", type = "u32"', '"b", type = "u31"', "unknown type 'u31'"),
        ('"b", type = "u32"', '"a", type = "u32"', "listed twice"),
        ('"b", type = "u32"', '"b", tpye = "u32"', "unknown key 'tpye'"),
        ('"b", type = "u32", offset = 4', '"b", type = "u32", offset = "4"', "must be integers"),
        ("size = 16", "size = 24", "fields end at 16 but its size is 24"),
        ("size = 16", "size = 0", "positive size"),
        ('name = "hl_small"', 'name = "small"', "starts with hl_"),
        ('name = "small"', 'name = "large"', "write the file's own name 'small'"),
        ("HL_SMALL = 3", 'HL_SMALL = "3"', "constant HL_SMALL"),
        ("HL_SMALL = 3", "SMALL = 3", "constant SMALL"),
        ("[constants]", "[constants", "not TOML"),
    ],
)
def test_a_broken_layout_is_one_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in SMALL
    file = write(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_layout(file)
    message = str(caught.value)
    assert complaint in message
    assert str(file) in message
    assert "\n" not in message


def test_unknown_and_missing_layouts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^none: no such layout; known are board, bridge, hami-1\.2, history"):
        load_layout("none")
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_layout(tmp_path / "small.toml")


@pytest.mark.parametrize("name", layout_names())
def test_constants_do_not_collide(name: str) -> None:
    """Every C file may include every layout header."""
    mine = set(load_layout(name).constants)
    others: set[str] = set()
    for other in layout_names():
        if other != name:
            others |= set(load_layout(other).constants)
    assert mine & others == set()


def test_all_layout_headers_compile_together(compile_c: Callable[..., Path]) -> None:
    includes = "".join(f'#include "hl_layout_{identifier(name)}.h"\n' for name in layout_names())
    compile_c(f"{includes}int main(void) {{ return 0; }}\n", name="together")


def test_a_layout_is_frozen() -> None:
    layout: Layout = load_layout("node")
    assert load_layout("node") is layout
    assert re.fullmatch(r"[0-9a-f]{1,16}", f"{layout.hash:x}")
    with pytest.raises(AttributeError):
        layout.structs["hl_node_header"].size = 1  # type: ignore[misc]
