"""The layout hami-1.2 as a live one: its ABI for others, its registration, and what its sequence number cannot do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.region._emit import LANGUAGES, LAYOUTS, emit
from lab.spec import load_layout

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_emitted_c_compiles(compile_c: Callable[..., Path], layout: str) -> None:
    compile_c(emit(layout, "c") + "int main(void) { return 0; }\n", name=f"abi-{layout}")


def test_the_emitted_c_stops_a_build_that_disagrees(compile_c: Callable[..., Path]) -> None:
    text = emit("hami-1.2", "c").replace("    uint64_t sequence;\n", "    uint64_t added;\n    uint64_t sequence;\n")
    with pytest.raises(AssertionError, match="hl_hami_slot"):
        compile_c(text + "int main(void) { return 0; }\n", name="abi-wrong")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_emitted_numpy_runs_and_notices(layout: str, tmp_path: Path) -> None:
    text = emit(layout, "numpy")
    subprocess.run([sys.executable, "-c", text], check=True)
    wrong = text.replace("<u4", "<u8", 1)
    assert subprocess.run([sys.executable, "-c", wrong], capture_output=True, check=False).returncode == 1


TARGETS = tuple(f"{machine}-linux-{libc}" for machine in ("x86_64", "aarch64") for libc in ("gnu", "musl"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_emitted_c_holds_on_other_machines_and_libcs(layout: str, target: str, tmp_path: Path) -> None:
    """Their sem_t and pthread_mutex_t too, by a compiler that has their headers; and a wrong build is stopped there."""
    text = emit(layout, "c")
    for number, (one, right) in enumerate([(text, True), (text.replace("uint8_t lock[", "uint8_t lock[9 + "), False)]):
        file = tmp_path / f"abi{number}.c"
        file.write_text(one)
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-c", "-o", str(tmp_path / "o"), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode == 0) == right, done.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("language", ["go", "rust"])
def test_the_emitted_text_names_every_field(layout: str, language: str) -> None:
    text = emit(layout, language)
    for struct in load_layout(layout).structs.values():
        assert str(struct.size) in text
        assert all(str(field.offset) in text for field in struct.fields)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_emitted_rust_compiles_where_there_is_a_compiler(layout: str, tmp_path: Path) -> None:
    compiler, text = shutil.which("rustc"), emit(layout, "rust")
    if compiler is None:
        pytest.skip("no rustc on this machine, and no package index has one")
    for number, (one, right) in enumerate([(text, True), (text.replace("u64", "u32"), False)]):
        (tmp_path / f"abi{number}.rs").write_text(one)
        words = [
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
            "-o",
            str(tmp_path / "out"),
            str(tmp_path / f"abi{number}.rs"),
        ]
        done = subprocess.run([compiler, *words], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == right, done.stderr


def test_what_has_no_text_is_an_error() -> None:
    assert LANGUAGES == ("c", "go", "rust", "numpy")
    with pytest.raises(KeyError):
        emit("hami-1.2", "cobol")


@pytest.mark.report("B113")
@pytest.mark.parametrize(
    "count", [1, 64, pytest.param(128, marks=pytest.mark.full), pytest.param(256, marks=pytest.mark.full)]
)
def test_many_register_at_once(passes: Run, count: int) -> None:
    assert int(passes("members", count).stdout) > 0


@pytest.mark.report("B50")
@pytest.mark.sanitize
def test_no_torn_read_where_changes_are_made_under_the_lock(passes: Run, sanitizer: str) -> None:
    assert passes("torn", "hooklab", 2_000 if sanitizer else 50_000).stdout.split()[1] == "0"


@pytest.mark.report("B50", plants="two writers on one slot of hami-1.2")
def test_a_torn_read_by_two_writers(passes: Run) -> None:
    """HAMi's sequence number counts writers, it does not keep a second one out: the reader believes a half change."""
    reads, torn = map(int, passes("torn", "hami", 500_000_000).stdout.split())
    assert torn == 1, f"not one of {reads} reads was torn"
