"""A fake node and guests of it: Python programs that speak to libcuda.so.1 with the helpers of cuda_cases.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lab.node.server import NodeServer

HERE = Path(__file__).parent
PRELUDE = "import ctypes as c, json, os, sys\nfrom cuda_cases import *\n"


def load_cases() -> ModuleType:
    """cuda_cases.py, which is a program of its own and no part of a package."""
    known = sys.modules.get("cuda_cases")
    if known:
        return known
    spec = importlib.util.spec_from_file_location("cuda_cases", HERE / "cuda_cases.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cases() -> ModuleType:
    return load_cases()


class Guest:
    """A Python program on the fake driver. ``tell`` in it prints its one JSON answer; its stdin ends with ``end``."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        text = PRELUDE + "def tell(*values): print(json.dumps(values), flush=True)\n" + program
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, list[Any], str]:
        """(exit status, the values of each ``tell``, stderr)."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def node() -> Iterator[NodeServer]:
    with NodeServer(gpus=["a100-40g"], containers=["tenant"]) as server:
        yield server


@pytest.fixture
def guest(guest_environment: Callable[..., dict[str, str]]) -> Callable[..., Guest]:
    def begin(node: NodeServer, program: str, *libraries: Path, index: int = 0, **variables: str) -> Guest:
        more = {"HOOKLAB_PROCESS": str(index), "HOOKLAB_CONTAINER": "0", "PYTHONPATH": str(HERE), **variables}
        return Guest(program, guest_environment(*libraries, **{**node.environment, **more}))

    return begin


@pytest.fixture
def play(guest: Callable[..., Guest]) -> Callable[..., list[Any]]:
    """Runs a program that must end well; the values it told."""

    def run(node: NodeServer, program: str, *libraries: Path, **variables: str) -> list[Any]:
        status, told, err = guest(node, program, *libraries, **variables).end()
        assert status == 0, err
        return told

    return run
