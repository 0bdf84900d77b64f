"""lab.region: opening, checking, reaping, reading other layouts; the `region` command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.region import Region, RegionError, read_usage
from lab.spec import load_dialect, load_layout

MIB = 1 << 20
LAYOUT = load_layout("hooklab-1")
Cli = Callable[..., subprocess.CompletedProcess[str]]


class Worker:
    """A guest process that does what it is told (tests/native/region/worker.c)."""

    def __init__(self, program: Path, region: Path, *, limit: int = 100 * MIB, lock: str = "robust") -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.ask("open", region, lock, "reserve", limit) == [0]

    def ask(self, *words: object) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return [int(word) for word in self.process.stdout.readline().split()]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def region(tmp_path: Path) -> Path:
    return tmp_path / "region"


@pytest.fixture
def worker(region_program: Callable[[str], Path], region: Path) -> Iterator[Worker]:
    guest = Worker(region_program("worker"), region)
    assert guest.ask("reserve", 0, 1, 30 * MIB, 2) == [0, 0]
    assert guest.ask("settle", 0, 4096, 7, 30 * MIB) == [0]
    assert guest.ask("reserve", 1, 0, 5 * MIB, 1) == [0, 0]
    yield guest
    guest.kill()


def test_a_living_region(worker: Worker, region: Path) -> None:
    with Region.open(region) as opened:
        assert (opened.used(0), opened.used(1), opened.limit(0)) == (5 * MIB, 30 * MIB, 100 * MIB)
        (process,) = opened.processes()
        assert process.pid == worker.process.pid
        assert process.present
        assert process.comm == "region-worker"
        assert process.used[1][2] == 30 * MIB
        assert process.pending == {0: 5 * MIB, 1: 0}
        assert process.held == 35 * MIB
        assert process.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
        assert opened.check() == []
        assert opened.reap() == 0
    assert worker.ask("used", 1) == [30 * MIB]


def test_a_dead_process_is_shown_and_reaped(worker: Worker, region: Path) -> None:
    worker.kill()
    with Region.open(region) as opened:
        (process,) = opened.processes()
        assert not process.present
        assert opened.used(1) == 30 * MIB
        assert opened.reap() == 1
        assert opened.processes() == ()
        assert opened.used(1) == opened.used(0) == 0
        assert opened.check() == []


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda r: r.devices["used"].__setitem__(1, 7), "device 1: total 7 bytes, its slots hold 31457280"),
        (lambda r: r.devices["peak"].__setitem__(1, 7), "device 1: peak 7 is below the total 31457280"),
        (
            lambda r: r.slots["device"]["used"][0][1].__setitem__(3, 9),
            "slot 0, device 1: holds 31457280 bytes, its parts are",
        ),
        (lambda r: r.header.__setitem__("slot_high", 0), "slot 0 is taken but beyond slot_high 0"),
        (lambda r: r.header.__setitem__("slot_high", 5000), "slot_high 5000 is beyond the 1024 slots"),
        (lambda r: r.header.__setitem__("lock_kind", 3), "lock kind 3"),
        (lambda r: r.header.__setitem__("lock_holder", 700), "slot 699 (pid 0) died holding the lock"),
        (lambda r: r.header.__setitem__("lock_holder", 5000), "lock holder 5000 is beyond"),
        (lambda r: r.slots["state"].__setitem__(0, 9), "slot 0: state 9 is unknown"),
    ],
)
def test_every_check_sees_its_damage(
    worker: Worker, region: Path, damage: Callable[[Region], None], text: str, hooklab: Cli
) -> None:
    with Region.open(region, writable=True) as opened:
        saved = region.read_bytes()
        damage(opened)
        problems = opened.check()
        assert any(text in problem for problem in problems), problems
        assert all(problem.startswith(f"{region}: ") and "\n" not in problem for problem in problems)
    done = hooklab("region", "check", region)
    assert (done.returncode, done.stdout.splitlines()[:-1]) == (1, problems)
    assert done.stdout.splitlines()[-1].startswith(f"{region}: the lock is ")
    with region.open("r+b") as file:  # the guest goes on with sound books
        file.write(saved)


def test_duplicates_and_torn_identities(worker: Worker, region: Path) -> None:
    second = Worker(worker.process.args[0], region)  # type: ignore[index]
    with Region.open(region, writable=True) as opened:
        for name in ("pid", "pid_namespace", "start_time", "generation"):
            opened.slots[name][1] = opened.slots[name][0]
        problems = "\n".join(opened.check())
        assert f"pid {worker.process.pid} of PID namespace" in problems
        assert "generation 1 was handed out 2 times" in problems
        opened.slots["sequence"][1] = 1
        second.kill()
        assert f"slot 1: pid {worker.process.pid} died while it wrote its identity" in "\n".join(opened.check())


def foreign(**changes: int) -> bytes:
    header = np.zeros(1, LAYOUT.dtype("hl_region_header"))
    size = 4096 + 16 * 1024 + 1024 * 2048
    fields = {
        "magic": LAYOUT.constants["HL_REGION_MAGIC"], "version": 1, "header_bytes": 4096, "size": size,
        "layout_hash": LAYOUT.hash, "device_count": 16, "slot_count": 1024, "device_offset": 4096,
        "slot_offset": 4096 + 16 * 1024, "lock_kind": 2,
    }  # fmt: skip
    for name, value in {**fields, **changes}.items():
        header[name] = value
    return header.tobytes().ljust(size, b"\0")


FOREIGN = [
    (b"", "too short", True),
    (b"hello", "too short", False),
    (b"x" * 5000, "not a hooklab-1 region", False),
    ((19920718).to_bytes(4, "little").ljust(2008953, b"\0"), "HAMi-core", False),
    (foreign()[:-1], "bytes", False),
    (foreign() + b"\0", "bytes", False),
    (foreign(version=2), "version 2", False),
    (foreign(layout_hash=5), "another layout", False),
    (foreign(slot_offset=1 << 40), "damaged", False),
    (foreign(slot_count=1 << 20), "damaged", False),
]


@pytest.mark.parametrize(("content", "text", "usable"), FOREIGN)
def test_foreign_files_are_refused_in_one_line_and_left_alone(
    region_program: Callable[[str], Path], region: Path, hooklab: Cli, content: bytes, text: str, usable: bool
) -> None:
    region.write_bytes(content)
    with pytest.raises(RegionError) as caught:
        Region.open(region)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(region) in str(caught.value)
    shown = hooklab("region", "show", region)
    checked = hooklab("region", "check", region)
    if text == "HAMi-core":  # foreign to our ledger, not to the command
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "hami-1.2" in shown.stdout
    else:
        assert (shown.returncode, shown.stdout, shown.stderr) == (2, "", f"hooklab region: {caught.value}\n")
        assert (checked.returncode, checked.stdout) == (1, f"{caught.value}\n")
    guest = subprocess.run(
        [region_program("worker")],
        input=f"open {region} robust reserve 0\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert guest.stdout == ("0\n" if usable else f"{-71}\n")  # EPROTO
    assert usable or region.read_bytes() == content


def test_a_sound_header_is_accepted(region: Path) -> None:
    region.write_bytes(foreign())  # else the refusals above prove nothing
    with Region.open(region) as opened:
        assert opened.check() == []


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(RegionError, match="No such file"):
        Region.open(tmp_path / "none")
    with pytest.raises(RegionError, match="not a regular file"):
        Region.open(tmp_path)


def test_views_outlive_the_region(worker: Worker, region: Path) -> None:
    opened = Region.open(region)
    devices = opened.devices
    opened.close()
    opened.close()
    assert int(devices["limit"][0]) == 100 * MIB


def test_the_command_shows_it(worker: Worker, region: Path, hooklab: Cli) -> None:
    done = hooklab("region", "show", region)
    assert done.returncode == 0, done.stderr
    for text in (
        "robust mutex",
        "100 MiB",
        "30 MiB",
        "managed 30 MiB",
        "pending 5 MiB",
        "lives",
        str(worker.process.pid),
    ):
        assert text in done.stdout
    told = json.loads(hooklab("region", "show", region, "--json").stdout)
    assert told["schema"] == "hooklab.region/1"
    assert told["devices"][1]["used"] == 30 * MIB
    assert told["processes"][0]["used"]["1"]["managed"] == 30 * MIB
    assert hooklab("region", "check", region).returncode == 0


def test_other_ledgers_read_through_their_dialect(worker: Worker, region: Path, tmp_path: Path) -> None:
    (usage,) = read_usage(region, ledger=load_dialect("hooklab").ledger)
    assert (usage.pid, usage.bytes[:2]) == (worker.process.pid, (5 * MIB, 30 * MIB))
    layout = load_layout("hami-1.2")
    ledger = np.zeros(1, layout.dtype("hl_hami_region"))
    ledger["magic"], ledger["major"], ledger["minor"] = layout.constants["HL_HAMI_MAGIC"], 1, 2
    for slot, pid, size in ((0, 11, 3 * MIB), (1, 12, 4 * MIB)):
        ledger["procs"]["pid"][0, slot] = pid
        ledger["procs"]["host_pid"][0, slot] = pid + 1000
        ledger["procs"]["used"]["total"][0, slot, 2] = size
    hami = tmp_path / "cudevshr.cache"
    hami.write_bytes(ledger.tobytes() + b"\0")
    dialect = load_dialect("hami").ledger
    seen = read_usage(hami, ledger=dialect)
    assert [(u.pid, u.host_pid, u.bytes[2], sum(u.bytes)) for u in seen] == [
        (11, 1011, 3 * MIB, 3 * MIB),
        (12, 1012, 4 * MIB, 4 * MIB),
    ]
    ledger["minor"] = 3
    hami.write_bytes(ledger.tobytes())
    with pytest.raises(RegionError, match=r"layout 1\.3"):
        read_usage(hami, ledger=dialect)
    with pytest.raises(RegionError, match="magic"):
        read_usage(region, ledger=dialect)
    hami.write_bytes(b"")
    with pytest.raises(RegionError, match="0 bytes"):
        read_usage(hami, ledger=dialect)
    with pytest.raises(RegionError, match="cannot be read"):
        read_usage(tmp_path / "none", ledger=dialect)
