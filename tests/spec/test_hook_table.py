"""The hook table against what it describes: two header generations, a real driver's exports, its resolver's answers.

The lists in data/ are recorded facts; the headers that the build uses are read again here, so that a new pin of the
header wheels cannot bring a name that the table lacks.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from lab.spec import HookTable, SpecError, load_errors, load_hooks
from lab.spec._hooks import FOUND, TOO_OLD, UNKNOWN
from lab.spec._toml import HERE

DATA = Path(__file__).parent / "data"
LISTS = ("driver-580.159.04", "headers-12.9", "headers-13.5")


def names(file: str) -> dict[str, list[str]]:
    """{'cuda': [...], 'nvml': [...]} of a recorded list."""
    result: dict[str, list[str]] = {}
    for line in (DATA / f"{file}.txt").read_text().splitlines():
        if line.startswith("["):
            current = result.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            current.append(line)
    return result


def uncovered(table: HookTable, recorded: dict[str, list[str]]) -> list[str]:
    """Names of a list that the table lacks or has under the other library."""
    return [
        name
        for library, listed in recorded.items()
        for name in listed
        if name not in table.by_name or table[name].library != library
    ]


def golden() -> list[tuple[str, int, int, int, str | None]]:
    """(base, version, flags, status, name) at every step of the recorded answers."""
    rows = []
    for line in (DATA / "resolver-580.159.04.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        base, legacy, thread = (part.strip() for part in line.split("|"))
        for flags, cell in ((0, legacy), (2, legacy if thread == "=" else thread)):
            for step in cell.split():
                version, _, answer = step.partition(":")
                unanswered = answer.startswith("?")
                rows.append(
                    (base, int(version), flags, int(answer[1]) if unanswered else 0, None if unanswered else answer)
                )
    return rows


def differences(table: HookTable, rows: list[tuple[str, int, int, int, str | None]]) -> list[str]:
    """Steps at which the table does not answer as recorded; one version below each step is the step before it."""
    return [
        f"{base} {version} flags {flags}: {table.resolve(base, version, flags)} is not {(status, name)}"
        for base, version, flags, status, name in rows
        if table.resolve(base, version, flags) != (status, name)
    ]


@pytest.mark.parametrize("file", LISTS)
def test_covers(file: str) -> None:
    assert uncovered(load_hooks(), names(file)) == []


def test_recorded_sizes() -> None:
    assert {library: len(listed) for library, listed in names("driver-580.159.04").items()} == {
        "cuda": 707,
        "nvml": 404,
    }


def test_holds_nothing_else() -> None:
    known = {name for file in LISTS for listed in names(file).values() for name in listed}
    assert [hook.name for hook in load_hooks().hooks if hook.name not in known] == []


def test_absent_exactly_where_the_driver_lacks_it() -> None:
    exported = {name for listed in names("driver-580.159.04").values() for name in listed}
    assert {hook.name for hook in load_hooks().hooks if hook.fake != "absent"} == exported


def test_a_missing_name_is_seen(tmp_path: Path) -> None:
    text = (HERE / "hooks.toml").read_text()
    planted = tmp_path / "hooks.toml"
    planted.write_text(re.sub(r"^cuMemAlloc_v2 = .*\n", "", text, flags=re.M))
    table = load_hooks(planted)
    assert uncovered(table, names("driver-580.159.04")) == ["cuMemAlloc_v2"]
    assert any(line.startswith("cuMemAlloc 3020 flags 0") for line in differences(table, golden()))


@pytest.mark.parametrize(("library", "header"), [("cuda", "cuda.h"), ("nvml", "nvml.h")], ids=["cuda", "nvml"])
def test_covers_the_headers_of_this_build(library: str, header: str) -> None:
    from lab.codegen import headers
    from lab.codegen.build import DEFINES

    directories = [flag for path in headers.find().directories for flag in ("-I", str(path))]
    done = subprocess.run(
        [os.environ.get("CC", "cc"), "-E", "-P", *DEFINES, *directories, "-"],
        input=f"#include <{header}>\n",
        capture_output=True,
        text=True,
        check=True,
    )
    prefix = {"cuda": "cu", "nvml": "nvml"}[library]
    statements = done.stdout.replace("\n", " ").split(";")
    declared = {
        found[1]
        for statement in statements
        if "typedef" not in statement and (found := re.search(rf"\b({prefix}[A-Z]\w*)\s*\(", statement))
    }
    assert len(declared) > 400
    table = load_hooks()
    assert uncovered(table, {library: sorted(declared)}) == []
    claimed = {hook.name for hook in table.hooks if hook.header == library}
    assert claimed - declared == set()


def test_resolver_answers_like_the_real_one() -> None:
    rows = golden()
    assert len({base for base, *_ in rows}) == 487
    assert differences(load_hooks(), rows) == []


def test_resolver_between_and_beyond_the_steps() -> None:
    table = load_hooks()
    assert table.resolve("cuMemcpyHtoD", 3019) == (FOUND, "cuMemcpyHtoD")
    assert table.resolve("cuMemcpyHtoD", -1) == (FOUND, "cuMemcpyHtoD_v2")
    assert table.resolve("cuMemcpyHtoD", 6999, 2) == (TOO_OLD, None)
    assert table.resolve("cuMemcpyHtoD", 13000, 3) == (FOUND, "cuMemcpyHtoD_v2_ptds")
    assert table.resolve("cuMemcpyHtoD_v2", 13000) == (UNKNOWN, None)
    assert table.resolve("cuNoSuchThing", 13000) == (UNKNOWN, None)


def test_no_other_base_than_the_recorded_ones() -> None:
    recorded = {base for base, *_ in golden()}
    assert set(load_hooks().resolver()) <= recorded


def test_ids_are_positions_of_sorted_names() -> None:
    table = load_hooks()
    cuda = sorted(hook.name for hook in table.hooks if hook.library == "cuda")
    nvml = sorted(hook.name for hook in table.hooks if hook.library == "nvml")
    assert [hook.name for hook in table.hooks] == cuda + nvml
    assert [hook.id for hook in table.hooks] == list(range(len(table)))
    assert table.cuda_count == len(cuda)


def test_file_is_sorted_in_its_groups() -> None:
    group: list[str] = []
    groups = [group]
    for line in (HERE / "hooks.toml").read_text().splitlines():
        if line.startswith("["):
            groups.append(group := [])
        elif line.startswith(("cu", "nvml")):
            group.append(line.split()[0])
    assert sum(map(len, groups)) == len(load_hooks())
    assert all(group == sorted(group) for group in groups)


def test_every_pass_has_a_reason_and_no_hook_has_one() -> None:
    assert all(bool(hook.reason) == (hook.action == "pass") for hook in load_hooks().hooks)


def test_what_the_fake_lacks_it_lacks_for_a_reason() -> None:
    hooks = load_hooks().hooks
    assert all(bool(hook.lacks) == (hook.fake == "unsupported" and hook.kind == "func") for hook in hooks)


def test_variants_of_a_hooked_name_are_hooked() -> None:
    """A client gets any variant, by version and stream class: one that is left out is an escape."""
    table = load_hooks()
    hooked = {hook.base for hook in table.hooks if hook.hooked and hook.base and hook.action != "resolve"}
    assert [
        hook.name for hook in table.hooks if hook.base in hooked and not hook.hooked and hook.fake != "absent"
    ] == []


LINE = 'cuInit = {base = "cuInit", since = 2000, action = "lifecycle", fake = "real"}'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LINE.replace("lifecycle", "charged"), "action is 'charged'; write one of"),
        (LINE.replace('"real"', '"really"'), "fake is 'really'"),
        (LINE.replace(", since = 2000", ""), "base and since belong together"),
        (LINE.replace("action =", "actoin ="), "unknown key 'actoin'"),
        (LINE.replace('"lifecycle"', '"pass"'), "pass is a decision; give a reason"),
        (LINE.replace("cuInit = ", "nvmlInit = "), "starts with 'cu'; move it"),
        (LINE[:-1] + ', kind = "data"}', "data has bytes"),
        (LINE + "\n" + LINE.replace("cuInit =", "cuInit_v2 ="), "two names since the same version"),
        (LINE.replace('"real"', '"unsupported"'), "the group does not say why"),
        ("cuInit = 3", "not an inline table"),
        ("cuInit = {", "not TOML"),
        (LINE + "\n[cuda.other]\n" + LINE, "listed twice"),
        (LINE.replace("cuda", "cuda") + "\n[gl.x]\n", "not a library"),
    ],
)
def test_a_broken_table_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text("[cuda.init]\n" + text + "\n")
    with pytest.raises(SpecError) as caught:
        load_hooks(file)
    message = str(caught.value)
    assert complaint in message
    assert str(file) in message
    assert "\n" not in message


def test_error_codes() -> None:
    errors = load_errors()
    assert errors.name("cuda", 2) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert errors.name("nvml", 7) == "NVML_ERROR_INSUFFICIENT_SIZE"
    assert errors.name("cuda", 123456) == "123456"
    assert errors.by_name["CUDA_ERROR_NOT_SUPPORTED"].code == 801


def test_error_codes_cover_the_headers_of_this_build() -> None:
    from lab.codegen import headers

    errors = load_errors()
    for header, prefix, known in (("cuda.h", "CUDA", errors.cuda), ("nvml.h", "NVML", errors.nvml)):
        text = next(
            (path / header).read_text(errors="replace")
            for path in headers.find().directories
            if (path / header).exists()
        )
        declared = set(re.findall(rf"^\s+({prefix}_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)", text, re.M))
        assert {(error.name, str(error.code)) for error in known} == declared
