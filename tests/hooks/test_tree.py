"""The source side: the four representations of a HAMi-family tree, drifted in every way they have drifted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.codegen.signatures import derive, parameters
from lab.hooks._c import definitions, strip_extern_c, tokens
from lab.hooks.project import ProjectError, Tree, load_project
from lab.hooks.tree import TreeError, TreeReport, read_tree
from lab.spec import load_signatures

NAMES = ("cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxGetDevice")
BODIES = {
    "cuInit": "CUresult cuInit(unsigned int Flags) { return 0; }",
    "cuMemAlloc_v2": "CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)\n{\n    return 0;\n}",
    "cuMemFree_v2": "FUNC_ATTR CUresult CUDAAPI cuMemFree_v2(CUdeviceptr p) { return 0; }",
    "cuCtxGetDevice": "CUresult cuCtxGetDevice(CUdevice *device) { if (device) { return 1; } return 0; }",
}
OTHER = "CUresult cuCtxGetDevice(CUdevice *d) { return CUDA_OVERRIDE_CALL(cuda_library_entry, cuCtxGetFlags, d); }"
OWN = "CUresult cuCtxGetDevice(CUdevice *d) { return CUDA_OVERRIDE_CALL(cuda_library_entry, cuCtxGetDevice, d); }"
RENAMED = "CUresult cuMemFree_v2(CUdeviceptr p) { return CUDA_OVERRIDE_CALL(cuda_library_entry, cuMemFree, p); }"
Plant = Callable[..., TreeReport]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """`plant(table=[...], enumeration=[...], dlsym=[...], bodies=[...], gate="")`: a small tree, read."""

    def make(
        table: tuple[str, ...] = NAMES,
        enumeration: tuple[str, ...] = NAMES,
        dlsym: tuple[str, ...] = NAMES,
        bodies: tuple[str, ...] = tuple(BODIES.values()),
        gate: str = "",
    ) -> TreeReport:
        source = tmp_path / "src"
        (source / "cuda").mkdir(parents=True)
        rows = "".join(f'    {{.name = "{name}"}},\n' if name.isidentifier() else f"    {name}\n" for name in table)
        (source / "cuda" / "hook.c").write_text(f"entry_t cuda_library_entry[] = {{\n    /* part */\n{rows}}};\n")
        members = "".join(f"    CUDA_OVERRIDE_ENUM({name}),\n" for name in enumeration)
        (source / "hook.h").write_text(
            "#define CUDA_OVERRIDE_ENUM(x) OVERRIDE_##x\n#define USE(t, s) t[CUDA_OVERRIDE_ENUM(cuNever)]\n"
            f"typedef enum {{\n{members}    END\n}} number;\n"
        )
        calls = "".join(f"    DLSYM_HOOK_FUNC({name});\n" for name in dlsym)
        opened, closed = (f"#ifdef {gate}\n", "#endif\n") if gate else ("", "")
        (source / "lib.c").write_text(
            f"{opened}void *section(const char *symbol) {{\n{calls}    return 0;\n}}\n{closed}"
        )
        (source / "cuda" / "wrappers.c").write_text("\n".join(bodies) + "\n")
        return read_tree(tmp_path, Tree())

    return make


def said(report: TreeReport) -> set[tuple[str, str]]:
    return {(finding.kind, finding.subject) for finding in report.findings if finding.fault}


def test_a_tree_in_step_is_clean(plant: Plant) -> None:
    report = plant()
    assert report.findings == ()
    lists = report.lists["cuda"]
    assert [entry.name for entry in lists.table] == [entry.name for entry in lists.enumeration] == list(NAMES)
    assert report.hooks == set(NAMES)
    assert (report.inventory.definitions, report.inventory.unique) == (5, 5)
    assert report.inventory.groups == {"src/cuda/wrappers.c": 4, "src/lib.c": 1}


@pytest.mark.parametrize(
    ("change", "kind", "subject"),
    [
        ({"enumeration": (NAMES[0], NAMES[2], NAMES[1], NAMES[3])}, "order", NAMES[1]),
        ({"enumeration": (*NAMES, "cuCtxGetFlags")}, "order", "cuCtxGetFlags"),
        ({"dlsym": NAMES[:2] + NAMES[3:]}, "missing", NAMES[2]),
        ({"dlsym": (*NAMES, NAMES[1])}, "duplicate", NAMES[1]),
        ({"dlsym": (*NAMES, "cuCtxGetFlags")}, "extra", "cuCtxGetFlags"),
        ({"table": NAMES[:3], "enumeration": NAMES}, "order", NAMES[3]),
        ({"enumeration": NAMES[:3]}, "missing", NAMES[3]),
        ({"bodies": tuple(BODIES.values())[:3]}, "missing", NAMES[3]),
        ({"bodies": (*list(BODIES.values())[:3], OTHER)}, "forwards-elsewhere", NAMES[3]),
        (
            {"bodies": (*list(BODIES.values())[:3], "CUresult cuCtxGetDevice(void) { return 0; }")},
            "wrong-prototype",
            NAMES[3],
        ),
    ],
)
def test_a_drifted_list_is_found(plant: Plant, change: dict[str, tuple[str, ...]], kind: str, subject: str) -> None:
    assert (kind, subject) in said(plant(**change))


def test_a_wrapper_that_calls_its_own_entry_is_clean(plant: Plant) -> None:
    """The header renames the plain name to the current variant, so that may be written too."""
    assert plant(bodies=(BODIES["cuInit"], BODIES["cuMemAlloc_v2"], RENAMED, OWN)).findings == ()


def test_findings_carry_file_and_line(plant: Plant) -> None:
    report = plant(dlsym=(*NAMES, "cuCtxGetFlags"))
    assert [finding.where for finding in report.findings] == ["src/lib.c:6"]


def test_a_list_behind_a_macro_is_noted(plant: Plant) -> None:
    notes = [finding for finding in plant(gate="HOOK_ENABLE").findings if finding.kind == "conditional"]
    assert len(notes) == 1
    assert "defined(HOOK_ENABLE)" in notes[0].text


def test_what_is_commented_out_or_under_if_0_does_not_count(plant: Plant) -> None:
    off = (
        "#if 0\nCUresult cuCtxGetFlags(unsigned *f) { return 0; }\n#endif",
        "// CUresult cuCtxSetFlags(unsigned f) { }",
    )
    table = (*NAMES, '//{.name = "cuCtxGetFlags"},', '/* {.name = "cuCtxSetFlags"}, */')
    assert plant(table=table, bodies=(*BODIES.values(), *off)).findings == ()


def test_alternatives_under_conditions_are_no_duplicates(plant: Plant) -> None:
    old, new = "CUresult cuCtxGetFlags(unsigned *f) { return 0; }", "int other(void) { return 1; }"
    either = f"#if CUDA_VERSION < 13000\n{old}\n#else\n{new}\n#endif"
    report = plant(bodies=(*BODIES.values(), either))
    assert [entry.conditions for entry in report.lists["cuda"].wrappers if entry.name == "cuCtxGetFlags"] == [
        ("CUDA_VERSION < 13000",)
    ]


def test_a_tree_without_hooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="no source matches"):
        read_tree(tmp_path, Tree())
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(TreeError, match="no table"):
        read_tree(tmp_path, Tree())


def test_definitions_are_told_from_declarations_calls_and_data() -> None:
    source = """
        extern "C" {
        int declared(int a, int b);
        static inline int one(int a, int (*callback)(int, int)) { return callback(a, a); }
        int array[] = {1, 2, 3};
        struct point { int x; } origin = {0};
        int __attribute__((noinline)) two(void) __attribute__((used)) { if (one(1, 0)) { while (1) {} } return '{'; }
        typedef int (*pointer)(void);
        #define MACRO(x) int x(void) { return 0; }
        char *three(char *text, ...) { return "}"; }
        }
    """
    found = list(definitions(strip_extern_c(list(tokens(source)))))
    assert [(one.name, one.parameters, one.static) for one in found] == [
        ("one", 2, True),
        ("two", 0, False),
        ("three", 2, False),
    ]


def test_parameters_are_split_and_named() -> None:
    assert parameters("void") == parameters("") == []
    assert parameters("CUdevice *device, unsigned int flags, size_t bytes, const char name[], void (*f)(int, int)") == [
        "*",
        "unsigned int",
        "size_t",
        "*",
        "*",
    ]


def test_signatures_are_what_the_headers_say() -> None:
    assert derive() == dict(load_signatures())


def test_signatures_tell_the_generations_apart() -> None:
    known = load_signatures()
    assert known["cuMemAlloc"] == "pi"  # 32-bit
    assert known["cuMemAlloc_v2"] == "pl"
    assert len(known["nvmlDeviceGetFanSpeed_v2"]) == len(known["nvmlDeviceGetFanSpeed"]) + 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hooks = 3", "not a list"),
        ("hook = []", "unknown"),
        ("[passes]\n'cu*' = ''", "needs its reason"),
        ("[tree]\nfiles = []", "unknown"),
        ("hooks = [", "not TOML"),
    ],
)
def test_a_wrong_project_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "project.toml"
    file.write_text(text)
    with pytest.raises(ProjectError, match=problem):
        load_project(file)


def test_a_project_describes_another_tree(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "all.c").write_text(
        'entry t[] = {{.name = "cuInit"}};\nenum n { NUMBER(cuInit) };\n'
        "void *f(void) { GIVE(cuInit); return 0; }\nint cuInit(unsigned f) { return 0; }\n"
    )
    file = tmp_path / "project.toml"
    file.write_text('[tree]\nsources = ["lib/*.c"]\nenumerators = ["NUMBER"]\ndlsym = ["GIVE"]\n')
    report = read_tree(tmp_path, load_project(file).tree)
    assert [len(one) for one in (report.lists["cuda"].enumeration, report.lists["cuda"].dlsym)] == [1, 1]
    assert report.findings == ()
