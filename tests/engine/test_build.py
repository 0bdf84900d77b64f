"""How the engine is built: what it exports, over which libpython, what is frozen, and errors that say what to do."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lab.native
import lab.policy
from lab.codegen import freeze, libpython

ROOT = Path(__file__).parents[2]
Host = Callable[[str], Path]


def dynamic(library: Path) -> str:
    return subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout


def test_exports_one_name_only(engine: Path) -> None:
    result = subprocess.run(["nm", "-D", "--defined-only", engine], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["hl_engine"]


def test_binds_to_itself_and_stays_loaded(engine: Path) -> None:
    entries = dynamic(engine)
    assert "SYMBOLIC" in entries
    assert "NODELETE" in entries
    assert "TEXTREL" not in entries
    assert not re.search(r"NEEDED.*python", entries)


def test_the_copy_has_no_name(engines: Callable[[str], Path]) -> None:
    entries = dynamic(engines("copy").parent / libpython.COPY_NAME)
    assert "SONAME" not in entries
    assert "SYMBOLIC" in entries
    assert not (engines("static").parent / libpython.COPY_NAME).exists()


def test_a_host_does_not_get_our_libpython_by_name(
    engine: Path, engines: Callable[[str], Path], host: Host, run: Any, tmp_path: Path
) -> None:
    plan = libpython.plan("copy")
    name = re.search(r"SONAME.*\[(.*)\]", dynamic(plan.library))
    assert name
    run([host("namesake"), "absent", name[1]], engine=engine)
    # The planted failure: the same library with its name.
    (tmp_path / "libhooklab-engine.so").write_bytes(engines("copy").read_bytes())
    (tmp_path / libpython.COPY_NAME).symlink_to(plan.library)
    run([host("namesake"), "present", name[1]], engine=tmp_path / "libhooklab-engine.so")


def test_a_missing_or_foreign_copy_is_one_line(
    engines: Callable[[str], Path], serve: Callable[..., Any], tmp_path: Path
) -> None:
    alone = tmp_path / "libhooklab-engine.so"
    alone.write_bytes(engines("copy").read_bytes())
    server = serve(alone)
    assert server.booted == -(2**63)
    assert "libhooklab-python.so: cannot open shared object file" in server.reason
    other = tmp_path / "other"
    other.mkdir()
    (other / alone.name).write_bytes(alone.read_bytes())
    subprocess.run(["cc", "-shared", "-o", other / libpython.COPY_NAME, "-x", "c", os.devnull], check=True)
    assert f"{other}/libhooklab-python.so has no PyPreConfig_InitIsolatedConfig" in serve(other / alone.name).reason


def test_the_engine_knows_its_sources(engine: Path, serve: Callable[..., Any], run: Any, host: Host) -> None:
    program = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); d.thin_source_hash.restype = d.thin_python.restype = "
        "ctypes.c_char_p; print(d.thin_source_hash().decode(), d.thin_python().decode())"
    )
    result = run([sys.executable, "-c", program, host("gil")], engine=engine)
    source_hash, version, variant = result.out.split()
    assert source_hash == lab.policy.source_hash()
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert variant in ("static", "copy")


def test_the_installed_engine_is_of_these_sources(run: Any, host: Host) -> None:
    """What commands check before they run: the built natives carry the hash of the policies beside them."""
    engine = lab.native.path("libhooklab-engine.so")
    program = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); d.thin_source_hash.restype = ctypes.c_char_p; "
        "print(d.thin_source_hash().decode())"
    )
    result = run([sys.executable, "-c", program, host("gil")], engine=engine)
    assert result.out.strip() == lab.native.build_info()["policy_hash"] == lab.policy.source_hash()


def test_every_byte_of_a_policy_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.policy import _hash

    sources = []
    for source in _hash.source_files():
        copy = tmp_path / source.relative_to(_hash.source_root())
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(source.read_bytes())
        sources.append(copy)
    sources.sort()
    monkeypatch.setattr(_hash, "__file__", str(tmp_path / "_hash.py"))
    before = _hash.source_hash()
    assert before == lab.policy.source_hash()
    sources[-1].write_bytes(sources[-1].read_bytes() + b"\n")
    changed = _hash.source_hash()
    assert changed != before
    sources[-1].rename(tmp_path / "renamed.py")
    assert _hash.source_hash() not in (before, changed)


def test_freezing_is_pure_and_sorted(tmp_path: Path) -> None:
    modules = [freeze.Module(name=name, source=f"x = {name!r}\n") for name in ("b", "a")]
    first = freeze.emit(modules=modules, codes=[2, 0, 2], policy_hash="0" * 16)
    second = freeze.emit(modules=list(reversed(modules)), codes=[0, 2], policy_hash="0" * 16)
    assert first == second
    text = first[freeze.HEADER]
    assert text.index("hl_frozen_a[") < text.index("hl_frozen_b[")
    (path,) = freeze.write(tmp_path, first)
    before = path.stat()
    assert freeze.write(tmp_path, second) == (path,)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == [freeze.HEADER]


def test_the_frozen_set_is_closed() -> None:
    names = {module.name for module in freeze.standard_modules()} | {module.name for module in freeze.policy_modules()}
    assert {"encodings", "encodings.utf_8", "enum", "typing", "dataclasses", "lab", "lab.policy._host"} <= names
    assert not names & set(sys.builtin_module_names)
    assert len(names) < 70


def test_headers_of_another_version_are_refused(tmp_path: Path) -> None:
    freeze.write(tmp_path, freeze.emit(modules=[], codes=[0], policy_hash="0"))
    source = '#define PY_VERSION_HEX 0x030200f0\n#include "hl_frozen.h"\n'
    command = ["cc", "-E", "-I", str(tmp_path), "-x", "c", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    assert result.returncode
    assert "use the headers of that version" in result.stderr


def test_a_static_archive_that_is_not_position_independent_is_seen(tmp_path: Path) -> None:
    plan = libpython.plan()
    source = tmp_path / "fake.c"
    source.write_text(
        "static int there; int *where = &there;\n"
        "void PyConfig_InitIsolatedConfig(void *p) { where = p ? &there : where; }\n"
        "int Py_IsInitialized(void) { return there; }\n"
    )
    archive = tmp_path / "libfake.a"
    for flags, reason in ((["-fno-pic", "-mcmodel=small"], "not position independent"), (["-fPIC"], "")):
        subprocess.run(["cc", *flags, "-c", source, "-o", tmp_path / "fake.o"], check=True)
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "rc", archive, tmp_path / "fake.o"], check=True)
        assert libpython._probe(("cc",), plan.headers, (str(archive),)) == reason


def test_plans_that_cannot_be_made_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(libpython.LibpythonError, match=r"HOOKLAB_ENGINE=dynamic: write static or copy"):
        libpython.plan("dynamic")
    with pytest.raises(libpython.LibpythonError, match=r"no-such-cc: no such C compiler; install gcc"):
        libpython.plan(compiler=["no-such-cc"])
    monkeypatch.setattr(libpython, "_archives", lambda _: [(Path("/nonexistent/libpython.a"), ())])
    monkeypatch.setattr(libpython, "_shared_libraries", lambda _: [])
    package = f"libpython{sys.version_info[0]}.{sys.version_info[1]}-dev"
    for variant in ("static", "copy", None):
        with pytest.raises(libpython.LibpythonError, match=f"cannot be embedded .*install {package}") as caught:
            libpython.plan(variant)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(libpython.sysconfig, "get_path", lambda _: "/nonexistent")
    monkeypatch.setattr(libpython.sysconfig, "get_config_var", lambda _: "/nonexistent")
    with pytest.raises(libpython.LibpythonError, match=f"no Python.h; install .*{package}"):
        libpython.plan()


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLAB_ENGINE", "copy")
    assert libpython.plan().variant == "copy"
    assert libpython.plan("static").variant == "static"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda image: b"#!" + image[2:], "not a 64-bit little-endian ELF file"),
        (lambda image: image[:5] + b"\2" + image[6:], "not a 64-bit little-endian ELF file"),
        (lambda image: image[:100], "truncated ELF file"),
        (lambda image: image[:4096], "no dynamic section"),
        (libpython.without_soname, "0 DT_SONAME entries"),
    ],
)
def test_what_is_no_libpython_is_refused(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    image = libpython.plan("copy").library.read_bytes()
    bad = tmp_path / "bad.so"
    bad.write_bytes(change(image))
    with pytest.raises(libpython.LibpythonError, match=f"bad.so: .*{said}"):
        libpython.copy_library(bad, tmp_path / "out.so")
    assert os.listdir(tmp_path) == ["bad.so"]


BUILD = """\
import subprocess, sys
from pathlib import Path
from lab.codegen import freeze, libpython
root, out = Path(sys.argv[1]), Path(sys.argv[2])
plan = libpython.plan(sys.argv[3])
freeze.write(out)
subprocess.run(["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{out}", f"-I{root}/shim/include",
    *plan.compile_flags, *map(str, sorted(root.glob("shim/engine/*.c"))), "-o", str(out / "libhooklab-engine.so"),
    *plan.link_flags], check=True)
plan.install_copy(out)
"""


@pytest.mark.parametrize("variant", ["static", "copy"])
def test_engines_over_other_pythons(
    python: Path,
    variant: str,
    serve: Callable[..., Any],
    host: Host,
    run: Any,
    script: Path,
    everything: str,
    tmp_path: Path,
) -> None:
    """Each Python of this machine that can be embedded: built over it, called from C and from the tests' own Python."""
    show = (
        "import sys, sysconfig as s, os; print(sys.version_info[1], os.path.exists(s.get_path('include')+'/Python.h'))"
    )
    minor, headers = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.split()
    command = [python, "-c", BUILD, ROOT, tmp_path, variant]
    # The package as the tests see it, found without this environment's other packages.
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.policy.__file__).parents[2])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if int(minor) < 11 or headers == "False":
        assert result.returncode
        return
    if result.returncode:
        assert "LibpythonError" in result.stderr, result.stderr
        assert "; install libpython" in result.stderr
        return
    engine = tmp_path / "libhooklab-engine.so"
    for policy in ("", everything):
        server = serve(engine, policy)
        assert (server.booted, server.reason) == (0, "")
        assert server.ask("admit", 0, 1, 1, 0, 100, 0) == 0, server.text("reason")
    assert f".{minor}." in run([sys.executable, script, host("gil"), "calls"], engine=engine).out
    run([host("threads"), "together"], engine=engine)
    run([host("forks"), "storm", "5"], engine=engine)
    run([host("forks"), "late"], engine=engine)
