"""Host PID brokers of a burst's conditions: a right one, or one that answers with what is no frame.

Both listen where the client looks, a path that is compiled into it: one burst at a time on a machine (the endpoint has
a lock and says so). A container has its own there, mounted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from lab.identity.broker import Broker
from lab.identity.endpoint import EndpointError, listen
from lab.identity.protocol import SOCKET
from lab.runner.guest import GuestError

_GARBAGE = b"no frame at all\n"


@contextlib.contextmanager
def serving(kind: str, *, socket: Path = Path(SOCKET)) -> Iterator[None]:
    """Serve while inside: ``right``, ``faulty``, or nobody for an empty text. GuestError when it cannot."""
    if not kind:
        yield
        return
    socket.parent.parent.mkdir(exist_ok=True)
    loop = asyncio.new_event_loop()
    started, failed = threading.Event(), list[Exception]()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            if kind == "right":
                async with Broker(socket):
                    started.set()
                    await stop.wait()
            else:
                await _answer_garbage(socket, started, stop)
        except (EndpointError, OSError) as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="burst-broker")
    thread.start()
    started.wait()
    try:
        if failed:
            raise GuestError(f"no broker can be served for this condition: {failed[0]}")
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _answer_garbage(socket: Path, started: threading.Event, stop: asyncio.Event) -> None:
    endpoint = listen(socket)

    def take() -> None:
        with contextlib.suppress(OSError):
            connection, _ = endpoint.listener.accept()
            with connection:
                connection.setblocking(False)
                connection.send(_GARBAGE)

    loop = asyncio.get_running_loop()
    loop.add_reader(endpoint.listener, take)
    try:
        started.set()
        await stop.wait()
    finally:
        loop.remove_reader(endpoint.listener)
        endpoint.close()
