"""What a container of a run looks like from inside. Strategy: real programs look around and print; nothing of the fake
driver is needed, so that a failure here is one of namespaces, mounts or environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.runner.container import probe_isolation
from lab.runner.execute import run_scenario
from lab.scenario.load import loads

pytestmark = pytest.mark.skipif(bool(probe_isolation()), reason=f"this machine: {probe_isolation()}")
Look = Callable[..., dict[str, str]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Run the containers of a scenario (a mapping); what each process printed, by label."""

    def run(containers: dict[str, Any], **more: Any) -> dict[str, str]:
        directory = run_scenario(
            loads(json.dumps({"name": "look", "containers": containers, "expect": [], **more}))[0],
            out=tmp_path / "runs",
        )
        info = json.loads((directory / "run.json").read_text())
        assert info["failure"] == ""
        return {
            entry["label"]: (directory / "stdout" / f"{entry['container']}-{entry['label']}.txt").read_text()
            for entry in info["processes"]
        }

    return run


def shell(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "run": ["sh", "-c", text], **more}


def test_private_pids_collide(look: Look) -> None:
    seen = look(
        {
            name: {"pid_namespace": "private", "processes": [shell(name, "echo $$; ls -d /proc/[0-9]* | head -20")]}
            for name in ("one", "two")
        }
    )
    for text in seen.values():
        pid, *processes = text.split()
        assert pid == "2"
        assert processes[:2] == ["/proc/1", "/proc/2"]


def test_host_pids_are_shared(look: Look) -> None:
    seen = look({"plain": {"processes": [shell("plain", "echo $$; readlink /proc/self/ns/pid")]}})
    pid, namespace = seen["plain"].split()
    assert namespace == str(Path("/proc/self/ns/pid").readlink())
    assert int(pid) > 2


def test_own_tmp_but_shared_lock_directory(look: Look) -> None:
    seen = look(
        {
            "first": {"processes": [shell("first", "echo x >/tmp/mine; echo y >/tmp/vgpulock/ours; cat /tmp/mine")]},
            "second": {
                "processes": [
                    shell(
                        "second", "test -e /tmp/mine && echo leaked; cat /tmp/vgpulock/ours", start={"after": "first"}
                    )
                ]
            },
        }
    )
    assert seen == {"first": "x\n", "second": "y\n"}
    assert not Path("/tmp/mine").exists()
    assert not Path("/tmp/vgpulock/ours").exists()


def test_mounts_of_an_allocation(look: Look) -> None:
    text = look(
        {
            "tenant": {
                "limits": {"memory": "4GiB", "cores": 25},
                "processes": [
                    shell(
                        "tenant",
                        "cat /etc/ld.so.preload;"
                        "(echo x >>/etc/ld.so.preload) 2>/dev/null || echo preload is read-only;"
                        "(: >/usr/local/vgpu/hooklab/x) 2>/dev/null || echo library is read-only;"
                        ": >/usr/local/vgpu/any.cache && echo cache is writable;"
                        "grep -c ^root: /etc/passwd; test -d /usr/local/bin && echo rest is there",
                    )
                ],
            }
        }
    )["tenant"]
    assert text.splitlines() == [
        "/usr/local/vgpu/hooklab/libhooklab-preload.so",
        "preload is read-only",
        "library is read-only",
        "cache is writable",
        "1",
        "rest is there",
    ]
    assert not Path("/etc/ld.so.preload").exists() or "hooklab" not in Path("/etc/ld.so.preload").read_text()


def test_limits_in_environment_and_file(look: Look) -> None:
    seen = look(
        {
            "tenant": {
                "limits": {"memory": "4GiB", "cores": 25},
                "processes": [
                    shell("kept", "env"),
                    shell("cleared", "env; cat /usr/local/vgpu/hooklab.conf", clear_environment=True),
                ],
            }
        }
    )
    variables = dict(line.split("=", 1) for line in seen["kept"].splitlines() if "=" in line)
    assert variables["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(4 << 30)
    assert variables["CUDA_DEVICE_SM_LIMIT"] == "25"
    assert variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith("/usr/local/vgpu/")
    assert variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"].endswith(".cache")
    assert "LD_PRELOAD" not in variables
    assert f"CUDA_DEVICE_MEMORY_LIMIT_0={4 << 30}" in seen["cleared"]
    assert "HOOKLAB_PROCESS" not in seen["cleared"]


def test_hami_writes_sizes_as_its_plugin_does(look: Look) -> None:
    seen = look(
        {
            "tenant": {
                "limits": {"memory": "4GiB"},
                "dialect": "hami",
                "interposer": "none",
                "processes": [shell("a", "env")],
            }
        }
    )
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=4096m\n" in seen["a"]


def test_loader_finds_the_fake_driver_without_variables(look: Look, native: Path) -> None:
    text = look({"a": {"interposer": "none", "processes": [shell("a", "/sbin/ldconfig -p", clear_environment=True)]}})[
        "a"
    ]
    first = next(line for line in text.splitlines() if "libcuda.so.1 " in line)
    assert first.endswith(str(native / "fake" / "libcuda.so.1"))


def test_working_directory(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    seen = look({"a": {"processes": [shell("ours", "pwd"), shell("said", "pwd", cwd="other")]}})
    assert seen == {"ours": f"{tmp_path}\n", "said": f"{tmp_path}/other\n"}


def test_shared_region(look: Look) -> None:
    seen = look(
        {
            "owner": {"processes": [shell("owner", "echo $CUDA_DEVICE_MEMORY_SHARED_CACHE $HOOKLAB_REGION_LOCK")]},
            "guest": {
                "pid_namespace": "private",
                "share_region_with": "owner",
                "processes": [shell("guest", "echo $CUDA_DEVICE_MEMORY_SHARED_CACHE $HOOKLAB_REGION_LOCK")],
            },
            "alone": {
                "pid_namespace": "private",
                "processes": [shell("alone", "echo $CUDA_DEVICE_MEMORY_SHARED_CACHE $HOOKLAB_REGION_LOCK")],
            },
        }
    )
    owner, guest, alone = (seen[name].split() for name in ("owner", "guest", "alone"))
    assert owner == guest
    assert owner[1] == "file"  # two PID namespaces: a robust mutex would take one process for another
    assert alone[0] != owner[0]
    assert alone[1] == "robust"


def test_a_second_container_does_not_see_the_first(look: Look) -> None:
    seen = look(
        {
            name: {"pid_namespace": "private", "processes": [shell(name, "ls /usr/local/vgpu")]}
            for name in ("one", "two")
        }
    )
    for text in seen.values():
        assert sorted(text.split()) == ["hooklab", "hooklab.conf"]
