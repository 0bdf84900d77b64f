"""Dialects: what reaches an interposer's environment, and how its ledger is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.spec import LedgerDialect, SpecError, dialect_names, load_dialect, load_layout

FORM = """
name = "mine"
[memory]
variable = "MINE_MEMORY"
device_variable = "MINE_MEMORY_{i}"
unit = "m"
[ledger]
variable = "MINE_LEDGER"
path = "/tmp/mine"
layout = "hami-1.2"
slots = {struct = "hl_hami_slot", at = 1856, count = 1024, live = "pid", devices = "used", bytes = ["total"]}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def test_hami_speaks_hami() -> None:
    environment = load_dialect("hami").limits(
        memory={0: 4 << 30, 1: 1 << 30}, cores=30, interposer="/x.so", ledger="/l"
    )
    assert environment == {
        "CUDA_REDIRECT": "/x.so",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1024m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/l",
    }


def test_ours_reads_the_same_names() -> None:
    ours, hami = load_dialect("hooklab"), load_dialect("hami")
    theirs = hami.limits(memory=1 << 20, cores={0: 5}, ledger="/l")
    assert {"CUDA_REDIRECT", *ours.limits(memory=1, cores={0: 5}, ledger="/l")} == set(theirs)


def test_no_limit_sets_no_variable() -> None:
    assert load_dialect("hooklab").limits() == {}


def test_a_file_of_the_same_form(tmp_path: Path) -> None:
    dialect = load_dialect(write(tmp_path, FORM))
    assert dialect.limits(memory=512 << 20) == {"MINE_MEMORY": "512m"}
    with pytest.raises(ValueError, match="1 bytes is not a whole number of m"):
        dialect.limits(memory=1)
    with pytest.raises(ValueError, match="no variable for this limit"):
        dialect.limits(cores=50)


def sums(ledger: LedgerDialect, data: bytes) -> list[int]:
    return [sum(device) for device in zip(*(row.bytes for row in ledger.rows(data)), strict=True)]


def test_reads_the_ledger_of_hami() -> None:
    layout = load_layout("hami-1.2")
    region = np.zeros((), layout.dtype("hl_hami_region"))
    region["procs"][0]["pid"] = 11
    region["procs"][0]["used"]["total"][0] = 100
    region["procs"][3]["pid"] = 12
    region["procs"][3]["used"]["total"][:2] = (20, 7)
    region["procs"][4]["used"]["total"][0] = 5000  # a free slot counts for nothing
    ledger = load_dialect("hami").ledger
    data = region.tobytes() + b"\0"
    assert len(data) == layout.constants["HL_HAMI_FILE_BYTES"]
    assert sums(ledger, data) == [120, 7] + [0] * 14
    assert [(row.slot, row.pid, row.bytes[:2]) for row in ledger.rows(data)] == [(0, 11, (100, 0)), (3, 12, (20, 7))]
    assert ledger.rows(bytes(len(data))) == ()
    with pytest.raises(ValueError, match="shorter than its 1024 slots"):
        ledger.rows(data[:2_000_000])


def test_reads_our_ledger() -> None:
    layout = load_layout("hooklab-1")
    header = np.zeros((), layout.dtype("hl_region_header"))
    header["slot_offset"] = 20480
    slots = np.zeros(1024, layout.dtype("hl_region_slot"))
    slots[5]["state"] = layout.constants["HL_SLOT_LIVE"]
    slots[5]["device"]["held"][1] = 4096
    data = header.tobytes().ljust(20480, b"\0") + slots.tobytes()
    ledger = load_dialect("hooklab").ledger
    assert sums(ledger, data)[:3] == [0, 4096, 0]
    with pytest.raises(ValueError, match="shorter than its header"):
        ledger.rows(b"")


def test_reads_the_ledger_of_vgpu_manager() -> None:
    layout = load_layout("vgpu-manager-1")
    region = np.zeros((), layout.dtype("hl_vgpum_region"))
    region["devices"][0]["processes"][0] = (7, 0, 100)
    region["devices"][0]["processes"][1] = (9, 0, 20)
    region["devices"][1]["processes"][0] = (9, 0, 3)
    region["devices"][1]["process_count"] = 1
    ledger = load_dialect("vgpu-manager").ledger
    data = region.tobytes().ljust(layout.constants["HL_VGPUM_FILE_BYTES"], b"\0")
    assert [(row.pid, row.bytes[:3]) for row in ledger.rows(data)] == [(7, (100, 0, 0)), (9, (20, 3, 0))]
    assert ledger.rows(bytes(len(data))) == ()
    with pytest.raises(ValueError, match="shorter than its 16 devices, which end at 262400"):
        ledger.rows(data[:-65536])


def test_vgpu_manager_names_the_devices() -> None:
    dialect = load_dialect("vgpu-manager")
    environment = dialect.limits(memory={0: 4 << 30}, cores={0: 30}, uuids=["GPU-a", "GPU-b"], ledger="/not/told")
    assert environment == {
        "CUDA_MEM_LIMIT_0": "4096m",
        "CUDA_CORE_LIMIT_0": "30",
        "MANAGER_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "MANAGER_COMPATIBILITY_MODE": "0",
        "VMEMORY_NODE_ENABLED": "true",
    }
    assert dialect.names_devices
    assert dialect.needs_container == "the directory /etc/vgpu-manager/config"


def test_nvshare_has_no_limits_and_says_why() -> None:
    dialect = load_dialect("nvshare")
    assert dialect.limits(memory={0: 4 << 30}, cores=30, ledger="/not/told") == {}
    assert "no memory limit" in dialect.memory.none
    assert "no core limit" in dialect.cores.none
    assert dialect.needs_container == "the service nvshare-scheduler"
    with pytest.raises(ValueError, match="no known layout"):
        dialect.ledger.rows(b"")


def test_a_variable_for_each_device(tmp_path: Path) -> None:
    file = write(tmp_path, FORM + '[environment]\n"MINE_{i}" = "{uuid} is {i}"\nMINE_ALL = "{uuids}"\n')
    assert load_dialect(file).limits(uuids=["GPU-a", "GPU-b"]) == {
        "MINE_0": "GPU-a is 0",
        "MINE_1": "GPU-b is 1",
        "MINE_ALL": "GPU-a,GPU-b",
    }


@pytest.mark.parametrize("name", dialect_names())
def test_built_in_dialects_name_themselves(name: str) -> None:
    assert load_dialect(name).name == name


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('unit = "m"', 'unit = "MB"', "unit is 'MB'"),
        ("MINE_MEMORY_{i}", "MINE_MEMORY_i", "needs {i}"),
        ('"MINE_LEDGER"', '"MINE LEDGER"', "not the name of an environment variable"),
        ('layout = "hami-1.2"', 'layout = "hami"', "layout is 'hami'; known are"),
        ('layout = "hami-1.2"', "", "layout and one of slots and devices belong together"),
        ("[memory]", "[memroy]", "unknown key 'memroy'"),
        ('name = "mine"', "", "name is missing"),
        ('path = "/tmp/mine"', "path = 3", "is not a string"),
        ('live = "pid"', 'live = "alive"', "alive is no field of hl_hami_slot"),
        ('bytes = ["total"]', 'bytes = ["sum"]', "sum is no field of hl_hami_memory"),
        ('struct = "hl_hami_slot"', 'struct = "slot"', "slot is no struct of layout hami-1.2"),
        ("at = 1856", 'at = "procs"', "at is an offset, or a field"),
        ("count = 1024", "count = 0", "count must be a positive integer"),
        ('unit = "m"', 'unit = "m"\nnone = "why"', "none beside a variable"),
        ('unit = "m"', 'unit = "m"\nuuid_variable = "MINE"', "needs {uuid} where the device's UUID goes"),
        ('variable = "MINE_LEDGER"', "", "its path must lie in a [[directory]] of the container's own"),
        ("[ledger]", '[[directory]]\npath = "tmp"\n[ledger]', "write a plain absolute path"),
        ("[ledger]", '[service]\ncommand = ["a/b"]\n[ledger]', "the program lies beside the interposer"),
        ("[ledger]", '[service]\ncommand = ["a"]\nready = "/x/s"\n[ledger]', "socket in a [[directory]] with shared"),
        ('name = "mine"', 'name = "mine"\npoints = 1', "points is 1; write true or false"),
    ],
)
def test_a_broken_dialect_is_one_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in FORM
    file = write(tmp_path, FORM.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_dialect(file)
    message = str(caught.value)
    assert complaint in message
    assert str(file) in message
    assert "\n" not in message


def test_unknown_dialect() -> None:
    with pytest.raises(
        SpecError,
        match=r"none: no such dialect; known are hami, hooklab, .*, vgpu-manager, or give a TOML file",
    ):
        load_dialect("none")


def test_the_documented_form_is_read(tmp_path: Path, root: Path) -> None:
    text = (root / "docs/dialects.md").read_text().split("```toml\n")[1].split("```")[0]
    dialect = load_dialect(write(tmp_path, text))
    assert dialect.service is not None
    assert dialect.service.command == ("mine-scheduler", "--fast")
    assert dialect.limits(memory={0: 1 << 30}, uuids=["GPU-a"], interposer="/l", ledger="/f") == {
        "MINE_MEMORY_0": "1024m",
        "MINE_LIBRARY": "/l",
        "MINE_DEVICES": "GPU-a",
        "MINE_DEVICE_0": "GPU-a",
        "MINE_LEDGER": "/f",
    }
    (form,) = dialect.files
    content = form.content(memory={1: 5}, cores={}, uuids=["GPU-a", "GPU-b"])
    assert len(content) == 8192
    record = np.frombuffer(content, load_layout("vgpu-manager-1").dtype("hl_vgpum_config"), 1)[0]
    assert record["devices"]["total_memory"].tolist()[:3] == [0, 5, 0]
    assert record["magic"] == load_layout("vgpu-manager-1").constants["HL_VGPUM_CONFIG_MAGIC"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('total_memory = "{memory}"', 'total_memory = "{uuid}"', "is '{uuid}', no constant of layout vgpu-manager-1"),
        ('total_memory = "{memory}"', "uuid = 3", "uuid is 3, and the field holds text"),
        ('total_memory = "{memory}"', "memory = 3", "memory is no field of hl_vgpum_limits"),
        ("size = 8192", "size = 100", "size is 100; hl_vgpum_config has 2560 bytes"),
        ('path = "/var/lib/mine/limits"', 'path = "/elsewhere/limits"', "must lie in a [[directory]]"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, root: Path, old: str, new: str, complaint: str) -> None:
    text = (root / "docs/dialects.md").read_text().split("```toml\n")[1].split("```")[0]
    assert old in text
    with pytest.raises(SpecError) as caught:
        load_dialect(write(tmp_path, text.replace(old, new, 1)))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
