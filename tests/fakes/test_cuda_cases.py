"""The fake libcuda answers as the measured driver does, one test a fact; `-m gpu` asks a real one, one test a case.

The facts and the questions are in cuda_cases.py and the files of cases beside it, which ask any driver.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lab.node.server import NodeServer


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooklab_cuda_cases", Path(__file__).with_name("cuda_cases.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


cases = load()
# A sanitizer turns a fault of the driver into its own report: the cases that die are not for it.
NAMES = sorted(cases.CASES)
FACTS = [
    pytest.param(name, what, id=f"{name}-{what}", marks=() if what == "died" else pytest.mark.sanitize)
    for name in NAMES
    for what in cases.expected(name)
]


@pytest.fixture(scope="module")
def environment(guest_environment: Callable[..., dict[str, str]]) -> Iterator[dict[str, str]]:
    with NodeServer(gpus=["h200-141g"]) as node:
        yield guest_environment(**node.environment)


@pytest.fixture(scope="module")
def ask(environment: dict[str, str]) -> Callable[[str], dict[str, str]]:
    """What a case saw; each case is played once."""
    answers: dict[str, dict[str, str]] = {}

    def play(name: str) -> dict[str, str]:
        if name not in answers:
            answers[name] = cases.seen(name, environment)
        return answers[name]

    return play


@pytest.mark.parametrize(("name", "what"), FACTS)
def test_fact(name: str, what: str, ask: Callable[[str], dict[str, str]]) -> None:
    assert ask(name).get(what) == cases.expected(name)[what]


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_without_a_fact(name: str, ask: Callable[[str], dict[str, str]]) -> None:
    """A case that dies early, or says what nobody expects, is seen."""
    assert ask(name).keys() == cases.expected(name).keys()


def test_a_wrong_answer_is_caught(environment: dict[str, str]) -> None:
    """The planted failure: without a node no case can pass, and the comparison must say so."""
    answers = cases.seen("alloc", {**environment, "HOOKLAB_NODE": "/nonexistent/node.sock"})
    assert answers.get("1 B") != cases.expected("alloc")["1 B"]
    assert "died" in answers


def test_a_case_that_hangs_says_so_and_how_far_it_came(environment: dict[str, str]) -> None:
    """The planted hang: on a card, one case that never ends must not hide the answers of the others."""
    answers = cases.seen("hang", environment, limit=6)
    assert answers == {"before": "0", "died": "hangs"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(cases.CASES.keys() - cases.LUCK - cases.FAKE_ONLY))
def test_a_real_driver_agrees(name: str) -> None:
    """Needs a GPU and its libcuda.so.1 where the loader finds it."""
    assert cases.seen(name, dict(os.environ)) == cases.expected(name)
