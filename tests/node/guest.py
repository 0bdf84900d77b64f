"""A process of a fake node, without any driver: speaks the node's protocol and changes its accounts as a driver would.

`guest.py SOCKET CONTAINER INDEX cuda|nvml` is one such process; without arguments it is a nest that forks them on
demand (an interpreter start each would be most of a test's time); `guest.py swarm SOCKET COUNT` is many at once.
A guest says one line a command on stdout and takes from stdin: `take DEVICE KIND BYTES`, `give DEVICE KIND BYTES`,
`context DEVICE DELTA`, `call NAME`, `meet FAULT`, `crowd FAULT THREADS`, `spin FAULT` (one thread meets, another never
rests), `tear DEVICE KIND BYTES` (leaves a change half-made, as a kill inside
it would), `second cuda|nvml`, `drop`, `fork` (the child goes on), `exec`, `churn LIBRARY` (changes its accounts without
end, to be killed in the middle).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np

from lab import native
from lab.node.layout import NodeFile, Words, constants, dtype
from lab.spec import load_hooks, load_layout


def attach(path: str, container: int, index: int, kind: str) -> tuple[socket.socket, np.void, list[int]]:
    """One connection to the server: (connection, reply, descriptors). OSError with the server's errno."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    request = np.zeros((), dtype("hl_node_request"))
    request["magic"] = constants()["HL_NODE_MAGIC"]
    request["version"] = constants()["HL_NODE_VERSION"]
    request["kind"] = constants()[f"HL_REQUEST_ATTACH_{kind.upper()}"]
    request["container"] = container
    request["index"] = index
    request["ns_pid"] = os.getpid()
    connection.send(request.tobytes())
    message, descriptors, _, _ = socket.recv_fds(connection, dtype("hl_node_reply").itemsize, 2)
    reply = np.frombuffer(message, dtype("hl_node_reply"))[0]
    if reply["status"]:
        raise OSError(int(reply["status"]), os.strerror(int(reply["status"])))
    return connection, reply, descriptors


class Guest:
    """An attached process and its part of the node file."""

    def __init__(self, path: str, container: int, index: int, kind: str) -> None:
        self.arguments = (path, container, index, kind)
        self.connection, reply, descriptors = attach(path, container, index, kind)
        self.slot = int(reply["slot"])
        self.generation = int(reply["generation"])
        self.host_pid = int(reply["host_pid"])
        self.memory_bytes = int(reply["memory_bytes"])
        self.descriptors = descriptors
        size = os.fstat(descriptors[0]).st_size
        self.file = NodeFile(Path(path), mmap.mmap(descriptors[0], size), descriptors[0])
        self.words = Words(self.file.base)
        self.library = ctypes.CDLL(str(native.path("libhooklab-region.so")))
        base, word, size64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
        self.library.hl_accounts_take.argtypes = [base, word, word, word, size64, base]
        self.library.hl_accounts_give.argtypes = [base, word, word, word, size64, base]
        self.library.hl_accounts_give.restype = None
        self.library.hl_meet.argtypes = [base, word, word]

    def take(self, device: int, kind: int, size: int) -> int:
        return int(self.library.hl_accounts_take(self.file.base, self.slot, device, kind, size, None))

    def give(self, device: int, kind: int, size: int) -> None:
        self.library.hl_accounts_give(self.file.base, self.slot, device, kind, size, None)

    def context(self, device: int, delta: int) -> None:
        self.file.processes[self.slot]["device"][device]["context_count"] += delta

    def call(self, name: str) -> None:
        self.file.process_calls[self.slot][load_hooks()[name].id] += 1

    def meet(self, fault: int) -> None:
        self.library.hl_meet(self.file.base, self.slot, fault)

    def tear(self, device: int, kind: int, size: int) -> None:
        """What a driver has done when it dies between its first and its last store under the account lock."""
        record = self.file.devices[device]
        mine = self.file.processes[self.slot]
        container = int(mine["container"])
        record["account_lock"] = self.slot + 1
        record["undo_used"] = record["used"]
        record["undo_process_bytes"] = mine["device"][device]["bytes"][kind]
        record["undo_kind"] = kind
        record["undo_slot"] = self.slot
        record["undo_container"] = container
        if container >= 0:
            record["undo_container_used"] = self.file.containers[container]["used"][device]
        record["undo_valid"] = 1
        mine["device"][device]["bytes"][kind] += size
        if container >= 0:
            self.file.containers[container]["used"][device] += size

    def churn(self, library: str) -> None:
        """Changes the accounts as fast as C can, until killed."""
        code = ctypes.CDLL(library)
        code.churn.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
        code.churn(self.file.base, self.slot, int(self.file.header["device_count"]), os.getpid())


def serve(path: str, container: int, index: int, kind: str) -> None:
    """One guest: attach, then do what stdin says."""
    guest = join(path, container, index, kind)
    connections = []
    for line in sys.stdin:
        words = line.split()
        match words[0]:
            case "take":
                say(f"took {guest.take(*map(int, words[1:]))}")
                continue
            case "fork":
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                    return
                guest.connection.close()
                guest = join(path, container, index, kind)
                continue
            case "exec":
                # A new image closes the connection and keeps the PID.
                os.execv(sys.executable, [sys.executable, __file__, path, str(container), str(index), kind])
            case "churn":
                say("churning")
                guest.churn(words[1])
            case "second":
                connections.append(attach(path, container, index, words[1])[0])
            case "drop":
                guest.connection.close()
            case "give" | "context" | "tear":
                getattr(guest, words[0])(*map(int, words[1:]))
            case "call":
                guest.call(words[1])
            case "meet":
                say("meeting")
                guest.meet(int(words[1]))
                say("met")
                continue
            case "crowd":
                for _ in range(int(words[2])):
                    threading.Thread(target=come, args=(guest, int(words[1])), daemon=True).start()
                continue
            case "spin":
                threading.Thread(target=come, args=(guest, int(words[1])), daemon=True).start()
                while True:
                    pass
        say("done")


def come(guest: Guest, fault: int) -> None:
    """A thread of its own that meets."""
    guest.meet(fault)
    say("met")


def join(path: str, container: int, index: int, kind: str) -> Guest:
    """Attach and say so, or say the errno and end."""
    try:
        guest = Guest(path, container, index, kind)
    except OSError as error:
        say(f"refused {error.errno}")
        os._exit(1)
    held = os.fstat(guest.descriptors[-1]).st_blocks
    facts = (guest.slot, guest.generation, guest.host_pid, guest.memory_bytes, len(guest.descriptors), held)
    say("attached " + " ".join(map(str, facts)))
    return guest


def warm() -> None:
    """Read the specs once, before the children are made: each of them would."""
    load_hooks()
    constants()
    for struct in load_layout("node").structs:
        dtype(struct)


def nest() -> None:
    """Fork guests on demand: a message brings the arguments and the child's stdin and stdout."""
    warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
        if not message:
            return
        child = os.fork()
        if child == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for target, descriptor in enumerate(descriptors):
                os.dup2(descriptor, target)
                os.close(descriptor)
            sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
            path, container, index, kind = message.decode().split("\0")
            serve(path, int(container), int(index), kind)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(child).encode())


def swarm(path: str, count: int) -> None:
    """So many processes at once, each attached until stdin ends. Says their PIDs."""
    warm()
    children = []
    for index in range(count):
        child = os.fork()
        if child == 0:
            kept = attach(path, -1, index, "cuda")
            os.read(0, 1)
            del kept
            os._exit(0)
        children.append(child)
    say(" ".join(map(str, children)))
    for child in children:
        os.waitpid(child, 0)


def say(line: str) -> None:
    """One answer."""
    print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        nest()
    elif sys.argv[1] == "swarm":
        swarm(sys.argv[2], int(sys.argv[3]))
    else:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
