"""A judged run made by hand: a directory with scenario, history and run.json, without any native part."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.checks.history import constants, dtype, event
from lab.scenario.vocabulary import hook_ids
from lab.spec import load_hooks, load_layout

SCENARIO = """\
name: hand-made
containers:
  tenant:
    limits: {memory: 4GiB}
    processes:
      - {name: p, count: 2, steps: [init, {alloc: {bytes: 1GiB, as: x}}]}
expect:
  - outcome: {step: x, ok: 1, oom: 1}
  - never_above: {memory: 4GiB}
"""


def ended(process: int, step: int, *, result: int = 0, ns: int = 1000, name: str = "cuMemAlloc_v2") -> dict[str, Any]:
    row = {"process": process, "step": step, "name": hook_ids()[name], "route": constants()["HL_ROUTE_DLSYM"]}
    return {"event": "STEP_END", "result": result, "c": ns, "container": 0, **row}


GOOD = [
    ended(0, 0, name="cuInit"),
    ended(1, 0, name="cuInit"),
    ended(0, 1, ns=2000),
    ended(1, 1, result=2, ns=9000),
    {"event": "PHYS_END", "container": 0, "device": 0, "b": 1 << 30},
    {"event": "EXIT", "process": 0},
    {"event": "EXIT", "process": 1},
]


def write_run(directory: Path, rows: Sequence[dict[str, Any]], *, text: str = SCENARIO, **info: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "scenario.yaml").write_text(text)
    layout = load_layout("history")
    header = np.zeros(1, layout.dtype("hl_history_header"))
    header["magic"], header["version"] = layout.constants["HL_HISTORY_MAGIC"], 1
    header["record_size"], header["names_hash"] = dtype().itemsize, load_hooks().hash
    header["capacity"] = header["next"] = len(rows)
    records = np.zeros(len(rows), dtype())
    records["commit"], records["time_ns"], records["pid"] = 1, np.arange(len(rows)) + 1, 7
    for index, row in enumerate(rows):
        for key, value in row.items():
            records[index][key] = event(value) if key == "event" else value
    (directory / "history").write_bytes(header.tobytes() + records.tobytes())
    body = {"schema": "hooklab.run/1", "evidence": "fake-driver", "started_ns": 5, "ended_ns": 1_000_005, **info}
    (directory / "run.json").write_text(json.dumps(body))
    return directory


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "run", rows: Sequence[dict[str, Any]] = GOOD, **more: Any) -> Path:
        return write_run(tmp_path / name, rows, **more)

    return make


@pytest.fixture
def good() -> list[dict[str, Any]]:
    return [dict(row) for row in GOOD]
