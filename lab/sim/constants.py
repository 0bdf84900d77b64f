"""Constants with where they come from. A number without a tag does not enter a model.

`measured`: on a machine named in the source. `fitted`: chosen so that the model meets published figures. `public`:
published by others. `assumed`: plausible, and the source says what depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TAGS = ("measured", "fitted", "public", "assumed")


@dataclass(frozen=True)
class Constant:
    """One value, its unit, its tag and its source."""

    value: int
    unit: str
    tag: str
    source: str

    def __post_init__(self) -> None:
        if self.tag not in TAGS:
            raise ValueError(f"tag {self.tag!r} is none of {', '.join(TAGS)}")


STARTUP: Mapping[str, Constant] = {
    "init": Constant(201_542_100, "ns", "fitted", "cuInit under the driver lock: nine cells of the article's table"),
    "init_per_client": Constant(99_850, "ns/client", "fitted", "its growth with live driver clients: as above"),
    "retain": Constant(
        296_900_000, "ns", "public", "primary context retain and release at low density: HAMi-core #1662"
    ),
    "retain_per_client": Constant(758_170, "ns/client", "fitted", "its growth with live driver clients: as above"),
    "nvml": Constant(370_000, "ns", "public", "two NVML process lists of the identity probe: 297.27 - 296.90 ms"),
    "register": Constant(
        226_000, "ns", "public", "registration under the region's lock: GPU-free test, 128 workers 100 ms"
    ),
    "register_per_slot": Constant(
        8_740, "ns/slot", "public", "its growth with slots: GPU-free test, 256 workers 336 ms"
    ),
    "broker": Constant(200_000, "ns", "public", "one broker query: 183 and 206 us p99 in the article"),
    "procfs": Constant(235_000, "ns", "assumed", "guarded procfs read and one NVML list; hidden by the driver queue"),
    "identity_timeout": Constant(30_000_000_000, "ns", "public", "each wait at the identity gate: the article"),
    "identity_tries": Constant(11, "waits", "public", "more than ten timeouts give up: the article"),
    "loader": Constant(30_000_000, "ns", "assumed", "loading libraries; changes p99 at 300 by less than 1 s"),
    "private": Constant(100_000_000, "ns", "assumed", "cuInit outside the driver lock; as above"),
    "after": Constant(5_000_000, "ns", "assumed", "post-init outside all locks; as above"),
    "cpus": Constant(128, "processors", "assumed", "of the host, for each phase on its own; as above"),
    "release": Constant(2_000_000, "ns", "assumed", "spread of the barrier's release"),
}


def start_up(**changes: int) -> dict[str, int]:
    """The values of `STARTUP` with some replaced. KeyError names a constant that does not exist."""
    unknown = sorted(set(changes) - set(STARTUP))
    if unknown:
        raise KeyError(f"no constant {unknown[0]!r}; known: {', '.join(STARTUP)}")
    return {name: constant.value for name, constant in STARTUP.items()} | changes
