"""A build that cannot go on says so in one line that names what to install, and builds nothing.

The driver is run from the clone (that is where sources are), in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.codegen import headers
from lab.codegen.failure import BuildError


def build(root: Path, *arguments: str | Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("CC", "CUDA_HOME", "PYTHONSAFEPATH")}
    return subprocess.run(
        [sys.executable, "-m", "lab.codegen", "build", *map(str, arguments)],
        cwd=root,
        env={**environment, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line a failed build prints."""
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("hooklab build: ")
    return done.stderr


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return ["--out", str(tmp_path / "out"), "--temp", str(tmp_path / "temp"), "--only", "region"]


def test_builds_when_nothing_is_missing(root: Path, folders: list[str], tmp_path: Path) -> None:
    done = build(root, *folders, env={})
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "libhooklab-region.so").is_file()
    assert (tmp_path / "out" / "build.json").is_file()


def test_no_compiler(root: Path, folders: list[str], tmp_path: Path) -> None:
    line = the_line(build(root, *folders, env={"CC": "/nonexistent"}))
    assert "no C compiler (/nonexistent): install gcc" in line
    assert not (tmp_path / "out").exists()


def test_no_compiler_at_all(root: Path, folders: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert "no C compiler (cc or gcc or clang): install gcc" in the_line(
        build(root, *folders, env={"PATH": str(tmp_path / "bin")})
    )


def test_a_compiler_without_libc_headers(root: Path, folders: list[str], tmp_path: Path) -> None:
    compiler = tmp_path / "bare-cc"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "bare cc 1"; exit 0; }\n'
        'echo "probe.c:1:10: fatal error: stdio.h: No such file or directory" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    line = the_line(build(root, *folders, env={"CC": str(compiler)}))
    assert "stdio.h: No such file or directory" in line
    assert "install libc6-dev" in line


def test_a_cuda_home_without_headers(root: Path, folders: list[str], tmp_path: Path) -> None:
    line = the_line(build(root, *folders, env={"CUDA_HOME": str(tmp_path)}))
    assert f"cuda.h is not under CUDA_HOME={tmp_path}" in line


def test_no_header_wheels_names_the_pinned_one(root: Path) -> None:
    with pytest.raises(BuildError) as caught:
        headers.find({}, path=[])
    message = str(caught.value)
    assert "cuda.h not found: pip install nvidia-cuda-runtime" in message
    assert "CUDA_HOME" in message
    assert "\n" not in message


def test_offline_with_cuda_home(tmp_path: Path) -> None:
    include = tmp_path / "include"
    include.mkdir()
    for directory in headers.find().directories:
        for name in ("cuda.h", "nvml.h"):
            if (directory / name).is_file():
                shutil.copy(directory / name, include)
    found = headers.find({"CUDA_HOME": str(tmp_path)}, path=[])
    assert found.directories == (include,)
    assert found.versions["cuda.h"].startswith("CUDA_HOME 1")


def test_unknown_target(root: Path) -> None:
    assert "nothing: no such target; known are region, fake-cuda" in the_line(build(root, "--only", "nothing", env={}))


def test_engine_variant_that_does_not_exist(root: Path, folders: list[str]) -> None:
    line = the_line(build(root, *folders[:-1], "engine", env={"HOOKLAB_ENGINE": "dynamic"}))
    assert "HOOKLAB_ENGINE=dynamic: write static or copy" in line


def copy_of(root: Path, target: Path) -> Path:
    """The clone without what was built in it."""
    ignored = shutil.ignore_patterns(".git", ".tox", ".venv", "build", "_native", "*.egg-info", "__pycache__", "runs")
    return Path(shutil.copytree(root, target, ignore=ignored))


def test_a_source_that_does_not_compile(root: Path, tmp_path: Path) -> None:
    clone = copy_of(root, tmp_path / "clone")
    (clone / "shim" / "region" / "planted.c").write_text("int planted(void) { return nothing; }\n")
    done = build(clone, "--only", "region", env={})
    assert done.returncode == 1
    assert "planted.c does not compile: " in done.stderr.splitlines()[-1]
    assert "error: 'nothing' undeclared" in done.stderr.splitlines()[-1].replace("‘", "'").replace("’", "'")
    assert not (clone / "lab" / "_native" / "libhooklab-region.so").exists()


def test_a_clone_without_its_sources(root: Path, tmp_path: Path) -> None:
    clone = copy_of(root, tmp_path / "clone")
    for source in (clone / "box").glob("*.c"):
        source.unlink()
    assert "box: no source matches box/*.c" in the_line(build(clone, "--only", "box", env={}))


def test_pip_ends_with_the_same_line(root: Path, tmp_path: Path) -> None:
    """Through setuptools: no traceback, and no wheel without natives."""
    clone = copy_of(root, tmp_path / "clone")
    program = "import setuptools.build_meta as build; build.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=clone,
        env={**os.environ, "CC": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no C compiler (/nonexistent)" in done.stderr.splitlines()[-1]
    assert list((clone / "dist").glob("*.whl")) == []


def test_elsewhere_the_wheel_is_pure(root: Path, tmp_path: Path) -> None:
    """On macOS simulator, checks and reports install without a compiler; nothing native is in the wheel."""
    clone = copy_of(root, tmp_path / "clone")
    program = (
        "import platform; platform.system = lambda: 'Darwin'\n"
        "import setuptools.build_meta as build; build.build_wheel('dist')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=clone, env={**os.environ, "CC": "/nonexistent"}, check=True)
    (wheel,) = (clone / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "lab/spec/hooks.toml" in names
    assert [name for name in names if name.startswith("lab/_native/")] == []
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"lab"}
    shipped = {name.removeprefix("lab/_scenarios/") for name in names if name.startswith("lab/_scenarios/")}
    assert shipped == {str(path.relative_to(root / "scenarios")) for path in scenario_files(root)}


def scenario_files(root: Path) -> list[Path]:
    return [path for path in (root / "scenarios").rglob("*") if path.is_file()]
