"""`hooklab doctor`: what is built and what the machine allows, and that what is wrong is said with its mend."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import native as natives
from lab.runner import container
from lab.runner.doctor import NATIVES, examine_build, examine_machine

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_a_sound_installation(hooklab: Cli, native: Path) -> None:
    done = hooklab("doctor", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"], document["healthy"]) == (0, "hooklab.doctor/1", True), done.stdout
    assert document.keys() == {"schema", "healthy", "build", "machine"}
    said = {finding["subject"]: finding["seen"] for finding in document["build"]}
    info = natives.build_info()
    assert said["build: engine"] == info["engine"]
    assert said["build: policy_hash"] == info["policy_hash"]
    assert hooklab("doctor").returncode == 0


def test_every_built_file_is_looked_for(native: Path) -> None:
    """What the build makes is what is looked for: nothing in the folder is left out."""
    built = {str(file.relative_to(native)) for file in native.rglob("*") if file.is_file()}
    assert built - {"build.json"} - {name for name in built if "libpython" in name} == set(NATIVES)


@pytest.mark.parametrize("name", NATIVES)
def test_a_missing_part_is_named(name: str, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _mirrored(native, tmp_path / "natives")
    (folder / name).unlink()
    monkeypatch.setenv("HOOKLAB_NATIVE", str(folder))
    (finding,) = [finding for finding in examine_build() if finding.state == "bad"]
    assert finding.subject == name
    assert "not built" in finding.mend


def test_nothing_built(hooklab: Cli, tmp_path: Path) -> None:
    done = hooklab("doctor", env={"HOOKLAB_NATIVE": str(tmp_path)})
    assert done.returncode == 1
    assert "no build.json that can be read" in done.stdout


def test_natives_of_other_sources(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = json.loads((native / "build.json").read_text())
    for target in info["built_from"].values():
        target["layouts_hash"] = "0" * 16
    folder = _mirrored(native, tmp_path / "natives")
    (folder / "build.json").unlink()
    (folder / "build.json").write_text(json.dumps(info))
    monkeypatch.setenv("HOOKLAB_NATIVE", str(folder))
    (finding,) = [finding for finding in examine_build() if finding.state == "bad"]
    assert (finding.subject, finding.mend) == ("natives", natives.REBUILD)
    assert "layouts" in finding.seen


def test_a_damaged_build_file_is_named(
    hooklab: Cli, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _mirrored(native, tmp_path / "natives")
    (folder / "build.json").unlink()
    (folder / "build.json").write_text("{")
    done = hooklab("doctor", "--json", env={"HOOKLAB_NATIVE": str(folder)})
    assert done.returncode == 1, done.stderr
    (finding,) = [finding for finding in json.loads(done.stdout)["build"] if finding["state"] == "bad"]
    assert "not JSON" in finding["mend"]


def test_another_package_of_our_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (finding,) = [finding for finding in examine_build() if finding.subject == "import name"]
    assert (finding.state, str(tmp_path / "lab") in finding.seen) == ("warn", True)


def test_what_the_machine_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no gdb here
    monkeypatch.setattr(container, "probe_isolation", lambda: "planted reason")
    found = {finding.subject: finding for finding in examine_machine()}
    assert (found["backtraces"].state, found["backtraces"].seen) == ("warn", "no gdb")
    assert (found["namespaces"].state, found["namespaces"].seen) == ("warn", "planted reason")


def _mirrored(native: Path, folder: Path) -> Path:
    """A folder that leads to every native; what a test takes away or writes there is its own."""
    for file in native.rglob("*"):
        if file.is_file():
            link = folder / file.relative_to(native)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    return folder
