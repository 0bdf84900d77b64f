"""The server of a fake GPU node: hands out the node file, sees deaths, gives a dead process's memory back.

One server a node, in the outermost PID namespace. Processes connect to its Unix socket (again after fork and exec);
SO_PEERCRED gives the host PID; the connection's end-of-file is the death notice. Invariants:

* the server's thread alone changes slots' states, generations and connections;
* totals of a device change only under its account lock, which a dead holder never keeps: its torn change is undone;
* a slot is free only after all its bytes are back (shared ones come back with their last holder: shares.py) and its
  meetings are over;
* the clients need the server for attaching, dying and sharing memory only: if it stops, they go on with the mapped
  file.
"""

from __future__ import annotations

import array
import contextlib
import errno
import heapq
import os
import selectors
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from lab.node.elsewhere import Runs, carry_out
from lab.node.faults import Candidate, Fault, may_arrive, must_open
from lab.node.layout import Capacity, NodeFile, NodeFileError, Words, constants, create_node_file, dtype
from lab.node.model import NodeSnapshot, read_snapshot
from lab.node.shares import Share, Shares
from lab.node.stillness import Rest, Stillness, look, threads
from lab.spec import load_hooks
from lab.spec.mig import KIND_NUMBERS, SLICES, Cut, mig_uuid
from lab.spec.profile import LATENCIES, NVML_PIDS, Profile, device_uuid, load_driver, load_profile

BLOCK_BYTES = 2 << 20
ADDRESS_FACTOR = 4  # a device's addresses, in its bytes: holes between allocations and managed memory need no memory
LONGEST_MEET = 6  # patiences until the threads of one process are let go although others of it are not at rest
MEET_TICK_S = 0.02  # how often waiting meetings are looked at: whether anybody can still come is not an event
LOCK_RETRY_S = 0.001  # a holder needs well under a microsecond unless it is descheduled or stopped
CLOSE_PATIENCE_S = 0.5
LONGEST_SOCKET_PATH = 107


class NodeError(RuntimeError):
    """The node cannot be made as asked; the text is one line."""


@dataclass
class _Process:
    """What the server alone knows of a slot in use."""

    slot: int
    pid: int
    generation: int
    connections: set[socket.socket] = field(default_factory=set)
    dying: bool = False
    buried: bool = False
    """Its bytes are back but those that others hold."""
    memory: int = -1
    """Its memory file, of which others hold parts; -1: it has shared none."""


SHARING = ("slices", "concurrent")  # in the order of HL_SHARING_*


@dataclass(frozen=True)
class _Expected:
    """A process that the run will start: it can still come to a meeting before it attached."""

    index: int
    container: int
    callers: int | None


class NodeServer:
    """A fake GPU node for the processes of one run. Use as a context manager.

    ``gpus``: profile names or profiles, one a device (``profile`` is the short form of one). ``latencies``: None = no
    modelled durations, ``"profile"`` = the profile's, or ns by name. ``time_scale``: 1.0 = modelled time is real time.
    ``directory``: where node file and socket go (made if absent; default: a temporary one, removed at the end).
    ``sharing``: whether processes take turns on a GPU or run side by side (``concurrent``, as under MPS).
    ``context_bytes`` replaces the profiles' context size. Memory sizes in bytes. ``runs``: who runs `vadd` and `mail`
    instead of the fake driver (elsewhere.py); called from threads of its own, one a launch.
    """

    def __init__(
        self,
        *,
        gpus: Sequence[str | Profile] = (),
        profile: str | Profile | None = None,
        driver: str = "580",
        containers: Iterable[str] = (),
        history_level: int = 1,
        directory: str | os.PathLike[str] | None = None,
        context_bytes: int | None = None,
        latencies: Mapping[str, int] | str | None = None,
        time_scale: float = 1.0,
        seed: int = 0,
        process_capacity: int = 1024,
        fault_capacity: int = 64,
        nvml_pids: str | None = None,
        sharing: str = "slices",
        runs: Runs | None = None,
    ) -> None:
        wanted = list(gpus) or [profile or "a100-80g"]
        self.profiles = tuple(load_profile(gpu) if isinstance(gpu, str) else gpu for gpu in wanted)
        self._driver = load_driver(driver)
        self._nvml_pids = nvml_pids or self.profiles[0].text("identity.nvml_pids")
        if self._nvml_pids not in NVML_PIDS:
            raise NodeError(f"nvml_pids {self._nvml_pids!r}: give one of {', '.join(NVML_PIDS)}")
        if sharing not in SHARING:
            raise NodeError(f"sharing {sharing!r}: give one of {', '.join(SHARING)}")
        self._sharing = sharing
        self._runs = runs
        self._latencies = latencies
        self._context_bytes = context_bytes
        self._seed = seed
        self._time_scale = time_scale
        self._history_level = history_level
        rows = len(self.profiles) + sum(len(gpu.cuts or ()) for gpu in self.profiles)
        self._capacity = Capacity(devices=rows, processes=process_capacity, faults=fault_capacity)
        self._container_names = list(containers)
        self._owned = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="hooklab-node-")) if directory is None else Path(directory)
        self.path = self.directory / "node"
        self.socket_path = self.directory / "node.sock"
        # The memory file is sparse and the fake driver gives each device an equal part of it.
        largest = max((gpu.cuda_total_bytes for gpu in self.profiles), default=0)
        self.memory_bytes = rows * ADDRESS_FACTOR * largest
        self._condition = threading.Condition(threading.RLock())
        self._processes: dict[int, _Process] = {}  # by slot
        self._by_pid: dict[int, _Process] = {}  # living ones
        self._by_connection: dict[socket.socket, _Process | None] = {}
        self._unused = iter(range(process_capacity))
        self._freed: list[int] = []
        self._generations: dict[int, int] = {}
        self._shares = Shares()
        self._shown: Mapping[tuple[int, int], int] = {}
        self._faults: dict[int, Fault] = {}
        self._short: dict[int, int] = {}
        self._stillness: dict[int, Stillness] = {}
        self._expected: dict[int, _Expected] = {}
        self._blocked: set[int] = set()  # indices of processes that wait for others outside the driver
        self._attached_total = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # due (monotonic s), tie-break, what to do
        self._timer_count = 0
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._file: NodeFile | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Make the node file, listen, serve from a thread of its own."""
        if len(os.fsencode(self.socket_path)) > LONGEST_SOCKET_PATH:
            raise NodeError(
                f"{self.socket_path}: path of the node's socket is longer than {LONGEST_SOCKET_PATH} bytes; "
                "choose a directory with a shorter path"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            hooks = load_hooks()
            self._file = create_node_file(
                self.path, capacity=self._capacity, name_count=len(hooks), names_hash=hooks.hash
            )
        except FileExistsError:
            raise NodeError(f"{self.path}: a node file is there already; choose another directory") from None
        except NodeFileError as error:
            raise NodeError(str(error)) from None
        except OSError as error:
            raise NodeError(f"{self.path}: cannot make the node file: {error.strerror}") from None
        self._words = Words(self._file.base)
        self._fill()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.setblocking(False)
        try:
            self._listener.bind(os.fspath(self.socket_path))
        except OSError as error:
            raise NodeError(f"{self.socket_path}: cannot listen: {error.strerror}") from None
        self._listener.listen(4096)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="hooklab-node", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, give every process's memory back, close the file (it stays when a directory was given)."""
        if self._thread is None:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._thread = None
        with self._condition:
            for connection in list(self._by_connection):
                self._lost(connection)
            for paper in self._shares.papers():
                self._paper_ended(paper)
            give_up = time.monotonic() + CLOSE_PATIENCE_S
            while self._processes and time.monotonic() < give_up:
                for process in list(self._processes.values()):
                    self._end(process)
        self._shares.close()
        self._selector.close()
        self._listener.close()
        os.close(self._wake)
        self.socket_path.unlink(missing_ok=True)
        self.file.close()
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def file(self) -> NodeFile:
        """The mapped node file."""
        if self._file is None:
            raise NodeError("the node server is not started")
        return self._file

    @property
    def environment(self) -> dict[str, str]:
        """What a guest process needs to find this node."""
        return {"HOOKLAB_NODE": os.fspath(self.socket_path)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the node file as it is now (its holes stay holes: most of it is room never used)."""
        source = self.file.descriptor
        with open(path, "wb") as target:
            end = os.fstat(source).st_size
            target.truncate(end)
            at = 0
            while at < end:
                try:
                    at = os.lseek(source, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # only a hole is left
                        return
                    raise
                stop = os.lseek(source, at, os.SEEK_HOLE)
                os.pwrite(target.fileno(), os.pread(source, stop - at, at), at)
                at = stop

    # -- what the runner asks -------------------------------------------------------------------------------------

    def register_container(self, name: str, *, limits: Sequence[int] = ()) -> int:
        """Add a container; its index in the run. ``limits``: bytes by device, for display only."""
        with self._condition:
            index = int(self.file.header["container_count"])
            if index >= int(self.file.header["container_capacity"]):
                raise NodeError(f"container {name!r}: the node has room for {index} containers")
            record = self.file.containers[index]
            record["name"] = name.encode()[:63]
            record["limit"][: len(limits)] = limits
            self.file.header["container_count"] = index + 1
            return index

    def plan(self, fault: Fault) -> int:
        """Plan a fault; its index in the node file. :class:`FaultError` when it makes no sense."""
        with self._condition:
            index = next((i for i in range(self._capacity.faults) if i not in self._faults), -1)
            if index < 0:
                raise NodeError(f"fault at {fault.name}: the node has room for {self._capacity.faults} faults")
            record = np.zeros((), dtype("hl_node_fault"))
            record["open"] = 0 if fault.action == "hold" else self._round(index)
            fault.write(record)
            self.file.faults[index] = record
            self._faults[index] = fault
            self.file.header["fault_count"] = max(int(self.file.header["fault_count"]), index + 1)
            self._words.store32(self.file.fault_at(index, "active"), 1)
        os.eventfd_write(self._wake, 1)
        return index

    def withdraw(self, index: int) -> None:
        """Plan the fault no longer; whoever waits in it goes on."""
        with self._condition:
            self._words.store32(self.file.fault_at(index, "active"), 0)
            self._words.open_meeting(index, self._round(index))
            self._wake_released()
            self._faults.pop(index, None)
            self._stillness.pop(index, None)
            self._short.pop(index, None)

    def release(self, index: int) -> None:
        """Let whoever a HOLD has stopped go on, now and from now on."""
        with self._condition:
            self._words.open_meeting(index, 0)
        os.eventfd_write(self._wake, 1)

    def fired(self, index: int) -> int:
        """How often a planned fault fired."""
        return self._words.load64(self.file.fault_at(index, "fired"))

    def waiting(self, index: int) -> int:
        """How many threads wait in this round of a MEET."""
        return sum(self._waiting(index, self._round(index)).values())

    def _round(self, index: int) -> int:
        return self._words.load32(self.file.fault_at(index, "open"))

    def _waiting(self, index: int, meeting: int) -> Counter[int]:
        """The same by process slot."""
        mark = meeting << 16 | index + 1
        words = self.file.header["waiters"].copy()
        return Counter((words[words >> 16 == mark] & 0xFFFF).astype(int) - 1)

    def met_short(self, index: int) -> int:
        """How many rounds of a MEET the server opened because nobody else could come."""
        return self._short.get(index, 0)

    def expect(self, *, process: int, container: int, callers: int | None = 1) -> None:
        """A process with this index will start: meetings wait for it until it has ended. ``callers``: how many of its
        threads can call the driver at once; None: that is not known."""
        with self._condition:
            self._expected[process] = _Expected(process, container, callers)

    def blocked(self, *, process: int) -> None:
        """The process waits for others (a barrier, its turn to start): until unblocked no meeting waits for it."""
        with self._condition:
            self._blocked.add(process)
        os.eventfd_write(self._wake, 1)

    def unblocked(self, *, process: int) -> None:
        """The process goes on and may come to a meeting again. To be said before it is let go."""
        with self._condition:
            self._blocked.discard(process)

    def ended(self, *, process: int) -> None:
        """The process with this index is over, whether it ever attached or not."""
        with self._condition:
            self._expected.pop(process, None)
        os.eventfd_write(self._wake, 1)

    def snapshot(self) -> NodeSnapshot:
        """Devices, containers and processes now."""
        for device in range(len(self.file.devices)):
            self._words.look(device)
        return read_snapshot(self.file, now_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))

    def wait_attached(self, count: int, *, timeout: float = 30.0) -> None:
        """Wait until ``count`` processes have attached since the start. TimeoutError says how many did."""
        self._wait(lambda: self._attached_total >= count, lambda: f"{self._attached_total} of {count}", timeout)

    def wait_live(self, count: int, *, timeout: float = 30.0) -> None:
        """Wait until exactly ``count`` slots are in use (a dying process counts until its bytes are back)."""
        self._wait(lambda: len(self._processes) == count, lambda: f"{len(self._processes)} live, not {count}", timeout)

    def wait_for(self, wanted: Callable[[NodeSnapshot], bool], *, timeout: float = 30.0) -> NodeSnapshot:
        """Wait for a snapshot in which ``wanted`` holds; it is looked at whenever a process comes or goes, and
        at each tick while a meeting is planned."""
        self._wait(lambda: wanted(self.snapshot()), lambda: "the state that was waited for is not there", timeout)
        return self.snapshot()

    def _wait(self, done: Callable[[], bool], state: Callable[[], str], timeout: float) -> None:
        with self._condition:
            if not self._condition.wait_for(lambda: self._failure is not None or done(), timeout):
                raise TimeoutError(f"node {self.socket_path}: processes attached: {state()} after {timeout:g} s")
            if self._failure is not None:
                raise NodeError(f"node {self.socket_path}: the server failed: {self._failure}")

    # -- the first contents of the file ---------------------------------------------------------------------------

    def _fill(self) -> None:
        header = self.file.header
        header["driver_version"] = self._driver.cuda
        header["driver_string"] = self._driver.driver.encode()
        header["nvml_string"] = self._driver.nvml.encode()
        header["server_pid"] = os.getpid()
        header["runs_elsewhere"] = self._runs is not None
        header["history_level"] = self._history_level
        header["time_scale_ppm"] = round(self._time_scale * 1_000_000)
        header["pid_namespace"] = _pid_namespace(os.getpid())
        header["nvml_pids"] = NVML_PIDS.index(self._nvml_pids)
        header["profile"] = self.profiles[0].profile.encode()
        header["card_count"] = len(self.profiles)
        row = len(self.profiles)
        for index, gpu in enumerate(self.profiles):
            self._fill_device(self.file.devices[index], gpu, index)
            for cut in gpu.cuts or ():
                self._fill_instance(self.file.devices[row], gpu, index, cut)
                row += 1
        for name in self._container_names:
            self.register_container(name)

    def _fill_device(self, record: Any, gpu: Profile, index: int) -> None:
        record["name"] = gpu.name.encode()
        record["uuid"] = np.frombuffer(device_uuid(self._seed, index), np.uint8)
        record["total_bytes"] = gpu.cuda_total_bytes
        record["nvml_total_bytes"] = gpu.nvml_total_bytes
        record["nvml_reserved_bytes"] = gpu.nvml_reserved_bytes
        record["context_bytes"] = gpu.context_bytes if self._context_bytes is None else self._context_bytes
        record["block_bytes"] = BLOCK_BYTES
        record["sharing"] = SHARING.index(self._sharing)
        for target, source in _DEVICE_NUMBERS.items():
            record[target] = gpu.number(source)
        record["pci_bus"] = index + 1
        record["minor_number"] = index
        record["serial"] = f"{1_320_000_000_000 + self._seed % 1_000_000 * 1000 + index}".encode()
        record["vbios"] = gpu.text("identity.vbios").encode()
        for name, duration in self._durations(gpu).items():
            record["latency_ns"][LATENCIES.index(name)] = duration
        record["mig"] = gpu.cuts is not None
        for number, kind in enumerate(gpu.kinds):
            target = record["instance_profiles"][number]
            target["name"] = kind.name.encode()
            target["starts"] = sum(1 << start for start in kind.starts)
            for name in KIND_NUMBERS:
                target[name] = getattr(kind, name)

    def _fill_instance(self, record: Any, gpu: Profile, card: int, cut: Cut) -> None:
        """A MIG instance: its card, with its own part of memory and multiprocessors. Assumed: cache, bus and aperture
        go with the memory slices, what a context takes with the multiprocessors."""
        kind = cut.kind
        self._fill_device(record, gpu, card)
        record["mig"] = 0
        record["instance_profiles"] = np.zeros((), dtype("hl_node_device"))["instance_profiles"]
        record["parent"] = card + 1
        record["gpu_instance"] = cut.gpu_instance
        record["compute_instance"] = cut.compute_instance
        record["instance_profile"] = gpu.kinds.index(kind)
        record["slice"] = cut.start
        record["mig_index"] = cut.index
        record["name"] = f"{gpu.name} MIG {kind.name}".encode()
        record["uuid"] = np.frombuffer(mig_uuid(self._seed, card, cut), np.uint8)
        record["total_bytes"] = record["nvml_total_bytes"] = kind.memory_bytes
        record["nvml_reserved_bytes"] = 0
        multiprocessors = gpu.number("compute.sm_count")
        if self._context_bytes is None:
            record["context_bytes"] = int(record["context_bytes"]) * kind.sm_count // multiprocessors
        record["nvml_context_extra"] = int(record["nvml_context_extra"]) * kind.sm_count // multiprocessors
        for name in ("l2_bytes", "bus_width_bits", "bar1_bytes"):
            record[name] = int(record[name]) * kind.memory_slices // SLICES
        record["sm_count"] = kind.sm_count
        record["copy_engines"] = kind.copy_engines

    def _durations(self, gpu: Profile) -> Mapping[str, int]:
        if self._latencies is None:
            return {}
        if isinstance(self._latencies, str):
            if self._latencies != "profile":
                raise NodeError(f"latencies {self._latencies!r}: give 'profile' or ns by name")
            return gpu.latencies
        unknown = sorted(set(self._latencies) - set(LATENCIES))
        if unknown:
            raise NodeError(f"latency {unknown[0]!r} is unknown; known: {', '.join(LATENCIES)}")
        return self._latencies

    # -- the server's thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopping:
                events = self._selector.select(self._patience())
                with self._condition:
                    for key, _ in events:
                        self._handle(key.fileobj)
                    self._run_timers()
                    self._review_meetings()
                    self._wake_released()
                    self._condition.notify_all()
        except BaseException as error:  # a dead server must not look like a slow one to those who wait
            with self._condition:
                self._failure = error
                self._condition.notify_all()
            raise

    def _patience(self) -> float | None:
        with self._condition:
            waits = []
            if self._timers:
                waits.append(max(0.0, self._timers[0][0] - time.monotonic()))
            if any(fault.action in ("meet", "hold") for fault in self._faults.values()):
                waits.append(MEET_TICK_S)
            return min(waits, default=None)

    def _handle(self, source: Any) -> None:
        if source is self._listener:
            self._accept()
        elif source == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        elif source in self._by_connection:
            self._receive(source)
        else:
            self._look_at_paper(source)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # they stay in the queue until a descriptor is free
                    time.sleep(LOCK_RETRY_S)
                return
            connection.setblocking(False)
            self._by_connection[connection] = None
            self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        kind = dtype("hl_node_request")
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, kind.itemsize + 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        process = self._by_connection[connection]
        if not message:
            self._lost(connection)
        elif process is None:
            self._attach(connection, message, descriptors)
        else:
            self._serve_share(connection, process, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    # -- shared memory --------------------------------------------------------------------------------------------

    def _serve_share(
        self, connection: socket.socket, process: _Process, message: bytes, descriptors: list[int]
    ) -> None:
        """What an attached process asks: to share memory, to hold a share, to let go, whether others hold it."""
        request = self._read_request(message)
        answer = None if request is None else self._share_requests.get(int(request["kind"]))
        if request is None or answer is None:
            self._answer(connection, status=errno.EPROTO, process=None, descriptors=[])
            return
        answer(self, connection, process, request, descriptors)

    def _answer(self, connection: socket.socket, **reply: Any) -> None:
        """Whoever has the answer finds in the file what NVML shows from now on."""
        self._show_shares()
        self._send(connection, **reply)

    def _share(self, connection: socket.socket, process: _Process, request: Any, descriptors: list[int]) -> None:
        table, flags = constants(), int(request["flags"])
        if (
            len(descriptors) != 1
            or int(request["device"]) >= len(self.file.devices)
            or request["memory"] >= table["HL_KINDS"]
        ):
            self._answer(connection, status=errno.EPROTO, process=None, descriptors=[])
            return
        file = descriptors.pop()
        if not flags & table["HL_SHARE_OWN_FILE"]:
            if process.memory >= 0:
                os.close(process.memory)
            process.memory, file = file, -1
        self._shares.add(
            Share(
                slot=process.slot,
                generation=process.generation,
                number=int(request["share"]),
                device=int(request["device"]),
                kind=int(request["memory"]),
                start=int(request["offset"]),
                bytes=int(request["bytes"]),
                file=file,
            )
        )
        self._answer(connection, status=0, process=process, descriptors=[])

    def _paper(self, connection: socket.socket, process: _Process, request: Any, _: list[int]) -> None:
        share = self._shares.find((int(request["slot"]), int(request["generation"]), int(request["share"])))
        if share is None or (share.slot != process.slot and process.slot not in share.holders):
            self._answer(connection, status=errno.ENOENT, process=None, descriptors=[])
            return
        ours, theirs = self._shares.paper(share)
        self._selector.register(ours, selectors.EVENT_READ)
        self._answer(connection, status=0, process=process, descriptors=[theirs])
        os.close(theirs)

    def _hold(self, connection: socket.socket, process: _Process, request: Any, descriptors: list[int]) -> None:
        """By paper, whoever has it; by name, while the maker lives and has not freed it."""
        if descriptors:
            share = self._shares.of_paper(descriptors[0])
        else:
            share = self._shares.find((int(request["slot"]), int(request["generation"]), int(request["share"])))
            share = share if share is not None and share.owned else None
        maker = None if share is None else self._processes.get(share.slot)
        file = -1 if share is None else share.file
        if (
            file < 0
            and share is not None
            and maker is not None
            and not maker.dying
            and maker.generation == share.generation
        ):
            file = maker.memory
        if share is None or file < 0:
            self._answer(connection, status=errno.ENOENT, process=None, descriptors=[])
            return
        if share.bytes:
            self._shares.hold(share, process.slot)
        self._answer(connection, status=0, process=None, descriptors=[file], share=share)

    def _let_go(self, connection: socket.socket, process: _Process, request: Any, _: list[int]) -> None:
        share = self._shares.find((int(request["slot"]), int(request["generation"]), int(request["share"])))
        if share is not None:
            self._settle(self._shares.let_go(share, process.slot))
        self._answer(connection, status=0, process=process, descriptors=[])

    def _disown(self, connection: socket.socket, process: _Process, request: Any, _: list[int]) -> None:
        share = self._shares.find((process.slot, process.generation, int(request["share"])))
        held = share is not None and self._shares.disown(share, int(request["bytes"]))
        self._answer(connection, status=errno.EBUSY if held else 0, process=process, descriptors=[])

    def _held(self, connection: socket.socket, process: _Process, request: Any, _: list[int]) -> None:
        for paper in self._shares.papers():  # whoever asks has closed some, perhaps, and wants to know what came of it
            self._look_at_paper(paper)
        share = self._shares.find((process.slot, process.generation, int(request["share"])))
        held = share is not None and share.held
        self._answer(connection, status=errno.EBUSY if held else 0, process=process, descriptors=[])

    _share_requests = MappingProxyType(
        {
            constants()["HL_REQUEST_SHARE"]: _share,
            constants()["HL_REQUEST_PAPER"]: _paper,
            constants()["HL_REQUEST_HOLD"]: _hold,
            constants()["HL_REQUEST_LET_GO"]: _let_go,
            constants()["HL_REQUEST_DISOWN"]: _disown,
            constants()["HL_REQUEST_HELD"]: _held,
        }
    )

    def _look_at_paper(self, ours: socket.socket) -> None:
        if self._shares.is_paper(ours):
            try:
                ended = ours.recv(64) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                self._paper_ended(ours)
                self._show_shares()

    def _paper_ended(self, ours: socket.socket) -> None:
        self._selector.unregister(ours)
        over = self._shares.paper_ended(ours)
        ours.close()
        self._settle(over)

    def _settle(self, over: Iterable[Share]) -> None:
        """Nobody has these shares any more: their bytes go back from the accounts of their makers."""
        for share in over:
            maker = self._processes.get(share.slot)
            if maker is None or maker.generation != share.generation:
                continue
            if not maker.dying:
                self._words.add64(self.file.process_at(maker.slot, "returned"), 1)
                self._take_back(maker, share)
            elif maker.buried:
                self._end(maker)

    def _take_back(self, maker: _Process, share: Share) -> None:
        if share.owed and not maker.dying:  # a dying one's come back with all the rest
            if self._words.take_back(maker.slot, share.device, share.kind, share.owed):
                share.owed = 0
            else:
                self._later(LOCK_RETRY_S, lambda: self._take_back(maker, share))

    def _show_shares(self) -> None:
        shown = self._shares.shown()
        for place in self._shown.keys() | shown.keys():
            slot, device = place
            self.file.processes[slot]["device"][device]["shown"] = shown.get(place, 0)
        self._shown = shown

    # -- kernels elsewhere ----------------------------------------------------------------------------------------

    def _run(self, connection: socket.socket, descriptors: list[int]) -> None:
        """A kernel to be run elsewhere; the thread that has it done owns the file and answers."""
        if self._runs is None or len(descriptors) != 1:
            self._refuse(connection, errno.EPROTO)
            return
        arguments = (connection, descriptors.pop(), self._runs)
        threading.Thread(target=self._run_in_thread, args=arguments, name="hooklab-run", daemon=True).start()

    def _run_in_thread(self, connection: socket.socket, descriptor: int, runs: Runs) -> None:
        status = errno.EIO
        try:
            carry_out(descriptor, runs)
            status = 0
        except OSError as error:
            status = error.errno or errno.EIO
        finally:
            os.close(descriptor)
            with self._condition:
                if connection in self._by_connection:
                    with contextlib.suppress(OSError):
                        self._send(connection, status=status, process=None, descriptors=[])

    # -- attaching ------------------------------------------------------------------------------------------------

    def _read_request(self, message: bytes) -> Any:
        table, kind = constants(), dtype("hl_node_request")
        request = np.frombuffer(message, kind)[0] if len(message) == kind.itemsize else None
        if request is None or (request["magic"], request["version"]) != (
            table["HL_NODE_MAGIC"],
            table["HL_NODE_VERSION"],
        ):
            return None
        return request

    def _attach(self, connection: socket.socket, message: bytes, descriptors: list[int]) -> None:
        table = constants()
        request = self._read_request(message)
        if request is None:
            self._refuse(connection, errno.EPROTO)
            return
        wanted = int(request["kind"])
        if wanted == table["HL_REQUEST_PING"]:
            self._send(connection, status=0, process=None, descriptors=[self.file.descriptor])
            return
        if wanted == table["HL_REQUEST_RUN"]:
            self._run(connection, descriptors)
            return
        container = int(request["container"])
        known = -1 <= container < int(self.file.header["container_count"])
        if wanted not in (table["HL_REQUEST_ATTACH_CUDA"], table["HL_REQUEST_ATTACH_NVML"]) or not known:
            self._refuse(connection, errno.EINVAL)
            return
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        if pid <= 0:
            self._refuse(connection, errno.ESRCH)  # it is no process of this PID namespace or one below
            return
        self._settle_pid(pid)
        process = self._by_pid.get(pid) or self._take_slot(pid, request)
        if process is None:
            self._refuse(connection, errno.ENOSPC)
            return
        process.connections.add(connection)
        self._by_connection[connection] = process
        self.file.processes[process.slot]["connections"] = len(process.connections)
        self._reply_attached(connection, process, memory=wanted == table["HL_REQUEST_ATTACH_CUDA"])
        self._condition.notify_all()

    def _settle_pid(self, pid: int) -> None:
        """Handle ends-of-file of this PID's earlier connections first: exec closed them, or the PID is another's."""
        process = self._by_pid.get(pid)
        if process is None:
            return
        for connection in list(process.connections):
            try:
                ended = connection.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                self._lost(connection)

    def _take_slot(self, pid: int, request: Any) -> _Process | None:
        slot = next(self._unused, None)  # a dead process's numbers stay readable as long as there are fresh slots
        if slot is None:
            if not self._freed:
                return None
            slot = self._freed.pop(0)
        generation = self._generations.get(slot, 0) + 1
        self._generations[slot] = generation
        process = _Process(slot, pid, generation)
        self._words.fold_calls(slot)
        self.file.processes[slot] = np.zeros((), dtype("hl_node_process"))
        record = self.file.processes[slot]
        record["generation"] = generation
        record["host_pid"] = pid
        record["ns_pid"] = request["ns_pid"]
        record["pid_namespace"] = _pid_namespace(pid)
        record["container"] = request["container"]
        record["index"] = request["index"]
        record["start_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        record["comm"] = _proc(pid, "comm").strip()[:31]
        record["command"] = _proc(pid, "cmdline").split(b"\0", 1)[0][:255]
        self._words.store32(self.file.process_at(slot, "state"), constants()["HL_PROCESS_LIVE"])
        self._processes[slot] = process
        self._by_pid[pid] = process
        self._attached_total += 1
        return process

    def _reply_attached(self, connection: socket.socket, process: _Process, *, memory: bool) -> None:
        descriptors = [self.file.descriptor]
        arena = -1
        try:
            if memory:
                arena = os.memfd_create(f"hooklab-gpu-{process.pid}", os.MFD_CLOEXEC)
                os.ftruncate(arena, self.memory_bytes + constants()["HL_SHARED_BYTES"])
                descriptors.append(arena)
            self._send(connection, status=0, process=process, descriptors=descriptors)
        except OSError as error:
            self._refuse(connection, error.errno or errno.EIO)
        finally:
            if arena >= 0:
                os.close(arena)

    def _send(
        self,
        connection: socket.socket,
        *,
        status: int,
        process: _Process | None,
        descriptors: list[int],
        share: Share | None = None,
    ) -> None:
        reply = np.zeros((), dtype("hl_node_reply"))
        reply["magic"] = constants()["HL_NODE_MAGIC"]
        reply["version"] = constants()["HL_NODE_VERSION"]
        reply["status"] = status
        if process is not None:
            reply["slot"] = process.slot
            reply["host_pid"] = process.pid
            reply["generation"] = process.generation
        if share is not None:
            reply["slot"], reply["generation"], reply["share"] = share.key
        elif len(descriptors) > 1:
            reply["memory_bytes"] = self.memory_bytes
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            connection.sendmsg([reply.tobytes()], ancillary)
        except (BrokenPipeError, ConnectionResetError):  # it died meanwhile: its end-of-file is on the way
            return

    def _refuse(self, connection: socket.socket, error: int) -> None:
        with contextlib.suppress(OSError):
            self._send(connection, status=error, process=None, descriptors=[])
        self._lost(connection)

    # -- deaths ---------------------------------------------------------------------------------------------------

    def _drop(self, connection: socket.socket) -> _Process | None:
        process = self._by_connection.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()
        if process is not None:
            process.connections.discard(connection)
            self.file.processes[process.slot]["connections"] = len(process.connections)
        return process

    def _lost(self, connection: socket.socket) -> None:
        process = self._drop(connection)
        if process is None or process.connections or process.dying:
            return
        process.dying = True
        if self._by_pid.get(process.pid) is process:
            del self._by_pid[process.pid]
        self._words.store32(self.file.process_at(process.slot, "state"), constants()["HL_PROCESS_DYING"])
        self._condition.notify_all()
        self._words.undo(process.slot)
        self._words.leave_meeting(process.slot)
        self._words.leave(process.slot, len(self.file.devices))  # what it had queued is gone at once, its memory later
        delay = self._exit_delay(process.slot)
        if delay > 0:
            self._later(delay, lambda: self._end(process))
        else:
            self._end(process)

    def _exit_delay(self, slot: int) -> float:
        """Seconds the driver takes to give the memory back, from the devices the process had a context on."""
        position = constants()["HL_LATENCY_PROCESS_EXIT"]
        held = self.file.processes[slot]["device"]["bytes"].sum(axis=1)
        durations = [
            int(self.file.devices[index]["latency_ns"][position]) for index in range(len(self.profiles)) if held[index]
        ]
        return max(durations, default=0) * self._time_scale / 1e9

    def _later(self, delay: float, work: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (time.monotonic() + delay, self._timer_count, work))

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _end(self, process: _Process) -> None:
        """Give all bytes of the slot back that nobody else holds; when that is all, free it. Where somebody else has a
        lock now, try again soon: waiting here could wait for one that is dead and whose notice lies unread."""
        if self._processes.get(process.slot) is not process:
            return
        if not process.buried:
            process.buried = True
            self._shares.maker_ended(process.slot, process.generation)
            self._settle(self._shares.holder_ended(process.slot))
        kept = self._shares.kept(process.slot, process.generation)
        if not (self._words.leave(process.slot, len(self.file.devices)) and self._words.bury(process.slot, kept)):
            self._later(LOCK_RETRY_S, lambda: self._end(process))
            return
        self._show_shares()
        if kept:
            self._condition.notify_all()
            return
        self._words.store32(self.file.process_at(process.slot, "state"), constants()["HL_PROCESS_FREE"])
        if process.memory >= 0:
            os.close(process.memory)
            process.memory = -1
        self._processes.pop(process.slot, None)
        self._freed.append(process.slot)
        self._condition.notify_all()

    # -- meetings -------------------------------------------------------------------------------------------------

    def _review_meetings(self) -> None:
        for index, fault in self._faults.items():
            if fault.action != "meet":
                continue
            meeting = self._round(index)
            candidates = self._candidates(index, fault, meeting)
            if must_open(fault, candidates) or self._held_up(index, fault, candidates):
                if sum(candidate.waiting for candidate in candidates) < fault.meet:
                    self._short[index] = self._short.get(index, 0) + 1
                self._words.open_meeting(index, meeting)

    def _wake_released(self) -> None:
        """A process that stops itself just when it is released must be woken later: as long as its word is there."""
        for index, fault in self._faults.items():
            if fault.action != "hold" or self._round(index) == 0:
                continue
            for slot in self._waiting(index, 0):
                process = self._processes.get(slot)
                if process is not None and not process.dying:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGCONT)

    def _held_up(self, index: int, fault: Fault, candidates: list[Candidate]) -> bool:
        """Whether those who could still come sleep and will not wake by themselves. Sleeping in modelled driver work
        is no rest: it ends. Threads that nothing is known of and that never rest are not waited for without end."""
        coming = [candidate for candidate in candidates if may_arrive(fault, candidate)]
        waiting = frozenset((candidate.pid, candidate.waiting) for candidate in candidates if candidate.waiting)
        watch = self._stillness.setdefault(index, Stillness(fault.patience_s))
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        work = any(self._words.look(device) for device in range(len(self.file.devices))) or any(
            int(device["init_busy_until"]) > now for device in self.file.devices
        )
        if not waiting or work or any(candidate.pid == 0 for candidate in coming):
            return watch.lasts(None, [Rest(False, 0)], now / 1e9)
        if fault.process is not None and watch.unchanged(waiting, now / 1e9) >= LONGEST_MEET * fault.patience_s:
            return True
        return watch.lasts(waiting, [look(candidate.pid) for candidate in coming], now / 1e9)

    def _candidates(self, index: int, fault: Fault, meeting: int) -> list[Candidate]:
        name = load_hooks()[fault.name].id
        waiters = self._waiting(index, meeting)
        found, seen = [], set()
        for process in self._processes.values():
            if process.dying:
                continue
            record = self.file.processes[process.slot]
            seen.add(int(record["index"]))
            waiting = waiters[process.slot]
            if int(record["index"]) in self._blocked and not waiting:
                continue
            found.append(
                Candidate(
                    process=int(record["index"]),
                    container=int(record["container"]),
                    calls=int(self.file.process_calls[process.slot, name]),
                    waiting=waiting,
                    callers=self._callers(fault, int(record["index"]), process.pid),
                    pid=process.pid,
                )
            )
        for expected in self._expected.values():
            if expected.index not in seen and expected.index not in self._blocked:
                found.append(Candidate(process=expected.index, container=expected.container, calls=0, waiting=0))
        return found

    def _callers(self, fault: Fault, index: int, pid: int) -> int:
        """How many threads of a process a meeting may wait for."""
        expected = self._expected.get(index)
        if expected is not None and expected.callers is not None:
            return expected.callers
        return threads(pid) if fault.process is not None else 1


_DEVICE_NUMBERS = {  # field of hl_node_device: constant of the profile
    "slice_ns": "sharing.slice_ns",
    "switch_ns": "sharing.switch_ns",
    "idle_switch_ns": "sharing.idle_switch_ns",
    "sample_period_ns": "sharing.sample_period_ns",
    "sample_lag_ns": "sharing.sample_lag_ns",
    "nvml_context_extra": "memory.nvml_context_extra",
    "printing_bytes": "memory.printing_bytes",
    "allocating_bytes": "memory.allocating_bytes",
    "sm_count": "compute.sm_count",
    "threads_per_sm": "compute.threads_per_sm",
    "cc_major": "compute.compute_major",
    "cc_minor": "compute.compute_minor",
    "clock_khz": "compute.clock_khz",
    "memory_clock_khz": "memory.clock_khz",
    "bus_width_bits": "memory.bus_width_bits",
    "l2_bytes": "memory.l2_bytes",
    "power_limit_mw": "power.limit_mw",
    "temperature_c": "power.temperature_c",
    "architecture": "identity.architecture",
    "brand": "identity.brand",
    "ecc": "memory.ecc",
    "integrated": "memory.integrated",
    "host_bytes": "memory.host_bytes",
    "bar1_bytes": "memory.bar1_bytes",
    "idle_power_mw": "power.idle_mw",
    "fan_count": "power.fan_count",
    "pcie_generation": "bus.pcie_generation",
    "pcie_width": "bus.pcie_width",
    "pci_device_id": "identity.pci_device_id",
    "pci_subsystem_id": "identity.pci_subsystem_id",
    "idle_clock_khz": "compute.idle_clock_khz",
    "registers_per_sm": "compute.registers_per_sm",
    "shared_bytes_per_sm": "compute.shared_bytes_per_sm",
    "shared_bytes_optin": "compute.shared_bytes_optin",
    "blocks_per_sm": "compute.blocks_per_sm",
    "copy_engines": "compute.copy_engines",
    "cores_per_sm": "compute.cores_per_sm",
}


def _pid_namespace(pid: int) -> int:
    """Inode of a process's PID namespace; 0 where it cannot be told (it has ended, or is not ours to look at)."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it died between connecting and now
        return b""
