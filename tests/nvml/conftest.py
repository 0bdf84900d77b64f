"""Nodes and processes as in tests/node, and a client of the fake NVML in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.server import NodeServer

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("hooklab_node_fixtures", HERE.parent / "node" / "conftest.py")
assert _spec
assert _spec.loader
_fixtures = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _fixtures
_spec.loader.exec_module(_fixtures)

make_node = _fixtures.make_node
join = _fixtures.join
nest = _fixtures.nest


@pytest.fixture
def probe(guest_environment: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    """`probe(node, case)`: what a case of probe.py saw, in a fresh process."""

    def run(node: NodeServer | None, case: str, *arguments: object, **variables: str) -> Any:
        environment = guest_environment(**(node.environment if node else {}), **variables)
        command = [sys.executable, "-S", "-P", str(HERE / "probe.py"), case, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{case}: {done.returncode}\n{done.stderr}"
        return json.loads(done.stdout)

    return run
