"""What is installed: a platform wheel with natives and scenarios, or an editable clone with natives in place."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import lab
from lab import native as module
from lab.codegen import fingerprint

PACKAGE = Path(lab.__file__).parent
NATIVES = (
    "build.json",
    "echo/libcuda.so.1",
    "echo/libnvidia-ml.so.1",
    "fake/libcuda.so.1",
    "fake/libnvidia-ml.so.1",
    "hooklab-bench",
    "hooklab-box",
    "hooklab-caller",
    "hooklab-routes",
    "hooklab-routes-host",
    "libhooklab-audit.so",
    "libhooklab-engine.so",
    "libhooklab-preload.so",
    "libhooklab-region.so",
    "libhooklab-routes.so",
)


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("hooklab")


def editable(distribution: importlib.metadata.Distribution) -> bool:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def test_version_is_said_once(distribution: importlib.metadata.Distribution) -> None:
    assert distribution.version == lab.__version__


def test_natives_are_there(native: Path) -> None:
    assert [name for name in NATIVES if not (native / name).is_file()] == []


def test_wheel_is_for_a_platform_and_any_python_3(distribution: importlib.metadata.Distribution) -> None:
    tags = [line.split()[1] for line in (distribution.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    assert tags
    for tag in tags:
        python, abi, system = tag.split("-")
        assert (python, abi) == ("py3", "none")
        assert system.endswith(platform.machine())


def test_scenarios_come_along(distribution: importlib.metadata.Distribution) -> None:
    assert (module.scenarios_dir() / "quickstart.yaml").is_file()
    if not editable(distribution):
        assert module.scenarios_dir() == PACKAGE / "_scenarios"


def test_every_spec_file_comes_along(root: Path) -> None:
    mine = {path.relative_to(root / "lab") for path in (root / "lab" / "spec").rglob("*.toml")}
    assert {path.relative_to(PACKAGE) for path in (PACKAGE / "spec").rglob("*.toml")} == mine


def test_build_info_says_what_it_is_made_of() -> None:
    info = module.build_info()
    assert info["engine"] in ("static", "copy")
    assert set(info["headers"]) == {"cuda.h", "nvml.h"}
    assert info["compiler"]
    assert len(info["policy_hash"]) == 16


def test_a_missing_native_is_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOOKLAB_NATIVE", str(tmp_path))
    for call in (lambda: module.path("libhooklab-preload.so"), module.build_info):
        with pytest.raises(FileNotFoundError, match="not built; unset HOOKLAB_NATIVE or point it") as caught:
            call()
        assert "\n" not in str(caught.value)
    (tmp_path / "build.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        module.build_info()


def test_importing_lab_pulls_in_nothing() -> None:
    program = "import sys; before = set(sys.modules); import lab; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert [name for name in done.stdout.split() if not name.startswith("__editable__")] == ["lab"]


def test_natives_fit_the_sources() -> None:
    assert fingerprint.difference(module.build_info()) == ""


def test_natives_of_other_sources_are_named() -> None:
    now = fingerprint.current()
    other = {**now, "names_hash": "0" * 16}
    assert (
        fingerprint.difference({"built_from": {"region": now, "preload": other}}) == "hook table (lab/spec/hooks.toml)"
    )
    policy = {**now, "policy_hash": "0" * 16}
    assert fingerprint.difference({"built_from": {"region": policy, "engine": now}}) == ""
    assert fingerprint.difference({"built_from": {"region": now, "engine": policy}}) == "policies (lab/policy)"
    assert fingerprint.difference({}).startswith("everything")
