"""A broker's counters for Prometheus (extra `broker`), and a small HTTP face: /metrics and /ready.

Invariants: the HTTP side is served by the broker's own event loop, on a loopback or cluster address that the operator
names; requests are bounded in size, number and time. Values are read when asked for: answering a PID costs
nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lab.identity.broker import Broker
from lab.identity.counts import BUCKETS_S

_PREFIX = "hostpid_broker"
_CONNECTIONS, _REQUEST_BYTES, _PATIENCE_S = 16, 4096, 2.0


class BrokerCollector(Collector):
    """Shows the counts of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Every family, with all its labels from the start."""
        counts = self._broker.counts
        for name, text, value in (
            ("connections_accepted", "Connections accepted.", counts.accepted),
            ("replies", "PIDs answered.", counts.replies),
            ("peer_credential_failures", "The kernel named no living process.", counts.credential_failures),
            ("handlers_rejected", "Waiting connections closed early to make room.", counts.rejected),
        ):
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        for name, text, label, values in (
            ("bad_requests", "Requests refused, by what was wrong.", "reason", counts.bad),
            ("timeouts", "Connections that ran out of time.", "direction", counts.timeouts),
        ):
            family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family
        yield GaugeMetricFamily(f"{_PREFIX}_handlers_active", "Connections waiting for bytes.", value=counts.active)
        total, buckets = 0, []
        for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"), counts.buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        yield HistogramMetricFamily(
            f"{_PREFIX}_request_duration_seconds",
            "From accepting a connection to closing it.",
            buckets=buckets,
            sum_value=counts.seconds,
        )


def exposition(broker: Broker) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(broker))
    return generate_latest(registry)


async def serve_http(broker: Broker, host: str, port: int) -> asyncio.Server:
    """Serves /metrics and /ready (200 while the broker answers, else 503). OSError when the address is taken."""
    slots = asyncio.Semaphore(_CONNECTIONS)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if slots.locked():
                return
            async with slots:
                async with asyncio.timeout(_PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_reply(broker, head))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    return await asyncio.start_server(talk, host, port, limit=_REQUEST_BYTES)


def _reply(broker: Broker, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, kind, body = "404 Not Found", "text/plain", b"/metrics or /ready\n"
    if method != b"GET":
        status, body = "405 Method Not Allowed", b"GET only\n"
    elif path == b"/metrics":
        status, kind, body = "200 OK", "text/plain; version=0.0.4", exposition(broker)
    elif path == b"/ready":
        status, body = ("200 OK", b"ready\n") if broker.ready else ("503 Service Unavailable", b"not ready\n")
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return lines.encode() + body
