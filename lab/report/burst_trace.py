"""A burst as a Perfetto trace: one track a worker, one slice a segment of its cuInit. Needs the `trace` extra."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from lab.report.burst import SEGMENTS, inside

_SEQUENCE = 1


def trace(run: Mapping[str, Any]) -> bytes:
    """The serialised trace. Time 0 is the release; what came before it is left out."""
    builder = TraceProtoBuilder()
    for number, one in enumerate(run["raw"]):
        track = number + 1
        packet = builder.add_packet()
        packet.track_descriptor.uuid = track
        packet.track_descriptor.name = f"worker {one['worker']}" + ("" if one["ok"] else f": {one['reason']}")
        phases = one["phases"]
        known = inside(phases)
        for (begin, _, first), (end, _, second) in itertools.pairwise(known):
            _slice(builder, track, SEGMENTS.get((first, second), f"{first} to {second}"), begin, end)
        if "worker_exit" in phases and "first_alloc" in phases:
            _slice(builder, track, "to the first allocation", phases["worker_exit"], phases["first_alloc"])
    return bytes(builder.serialize())


def _slice(builder: TraceProtoBuilder, track: int, name: str, begin: int, end: int) -> None:
    for kind, time in ((TrackEvent.TYPE_SLICE_BEGIN, begin), (TrackEvent.TYPE_SLICE_END, end)):
        packet = builder.add_packet()
        packet.timestamp = max(0, time)
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        if kind == TrackEvent.TYPE_SLICE_BEGIN:
            packet.track_event.name = name
