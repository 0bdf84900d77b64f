"""Looks at a running node from outside: asks its server for the node file and becomes no process of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np

from lab.node.layout import NodeFile, NodeFileError, constants, dtype, open_node_file

PATIENCE_S = 10.0


def open_running_node(path: str | os.PathLike[str]) -> NodeFile:
    """Map the node file of the server that listens at socket ``path``. :class:`NodeFileError` in one line."""
    place = Path(path)
    mend = "give the socket of a running node ($HOOKLAB_NODE), a node file or a run directory"
    request = np.zeros((), dtype("hl_node_request"))
    request["magic"] = constants()["HL_NODE_MAGIC"]
    request["version"] = constants()["HL_NODE_VERSION"]
    request["kind"] = constants()["HL_REQUEST_PING"]
    request["container"] = request["index"] = -1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(os.fspath(place))
            connection.send(request.tobytes())
            message, descriptors, _, _ = socket.recv_fds(connection, dtype("hl_node_reply").itemsize, 2)
        except OSError as error:
            raise NodeFileError(f"{place}: no node answers: {error.strerror or error}; {mend}") from None
        try:
            if len(message) != dtype("hl_node_reply").itemsize or not descriptors:
                raise NodeFileError(f"{place}: no node server of this version answers; {mend}")
            return open_node_file(f"/proc/self/fd/{descriptors[0]}", name=place)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def open_node(path: str | os.PathLike[str]) -> NodeFile:
    """Map a node by what it is: a running one's socket, a node file, or a run directory that holds one."""
    place = Path(path)
    if place.is_socket():
        return open_running_node(place)
    return open_node_file(place / "node" if place.is_dir() else place)
