"""What a policy file may do, in the engine and in `lab.policy.load` alike, and what becomes of one that misbehaves."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lab.policy
from lab.policy import ALLOWED_MODULES, MemoryPolicy, PolicyError
from lab.policy.pacing._words import SMS, TARGET, THREADS

Serve = Callable[..., Any]

ABSENT, FAULT, REENTRY = -(2**63), -(2**63) + 1, -(2**63) + 2
INSTEAD = 64  # HL_ENGINE_PACES_INSTEAD
ADMIT = "def admit(self, device, size, kind, used, limit, shared):"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return f"{path}:P"


def test_memory_policy() -> None:
    policy = MemoryPolicy()
    assert policy.admit(0, 100, 1, 0, 100, 0) == 0
    assert policy.admit(0, 101, 1, 0, 100, 0) == 2
    assert policy.admit(0, 1, 1, 100, 100, 40) == 2
    assert policy.admit(0, 2**63, 1, 2**63, 0, 0) == 0
    assert policy.lease(0, 512, 1, memoryview(b"")) == 512
    assert policy.observe(0, 1, 2, 3, memoryview(b"")) == 0
    assert isinstance(policy, lab.policy.Policy)
    assert isinstance(lab.policy.load(), MemoryPolicy)


def test_importing_policies_is_light() -> None:
    """The engine starts in a few milliseconds because of it; typing alone would double that."""
    program = "import sys; before = set(sys.modules); import lab.policy; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(name == "lab" or name.startswith("lab.policy") for name in result.stdout.split())


def test_all_published_modules(engine: Path, serve: Serve, everything: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "p.py", f"import {', '.join(ALLOWED_MODULES[1:])}\nclass P:\n  {ADMIT} return 0\n")
    assert serve(engine, spec).reason == ""
    spec = everything
    assert lab.policy.load(spec).admit(0, 1, 1, 1, 1, 1) == 0
    server = serve(engine, spec)
    assert (server.booted, server.reason) == (0, "")
    assert server.ask("admit", 0, 1, 1, 1, 1, 1) == 0, server.text("reason")


BAD_FILES = {
    "import math\n": "1: ImportError: a policy cannot import math; available: __future__, _thread, abc,",
    "import os.path\n": "1: ImportError: a policy cannot import os.path;",
    "from . import thing\n": "1: ImportError: a policy cannot import .;",
    "x = 1\nimport numpy as np\n": "2: ImportError: a policy cannot import numpy;",
    "x = 1\nclass P(:\n": "2:9: SyntaxError: invalid syntax",
    "class Q: pass\nclass R: pass\n": " no class P; it defines: Q, R",
    "P = 3\n": " no class P; it defines: none",
    "class P: pass\n": " class P has no method admit;",
    f"class P:\n  {ADMIT} return 0\n  lease = 3\n": " class P has no method lease;",
    "class P:\n  def __init__(self):\n    self.x = {}[3]\n": "3: KeyError: 3",
    "class P:\n  def __init__(self, x): pass\n": "TypeError: P.__init__() missing 1 required positional argument: 'x'",
    "import sys\nsys.exit('no')\n": "2: SystemExit: no",
    "open('/etc/passwd')\n": "1: NameError: name 'open' is not defined",
    "raise Exception('two\\nlines')\n": "1: Exception: two lines",
    "\0": "source code string cannot contain null bytes",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files_say_why_in_one_line(engines: Callable[[str], Path], serve: Serve, tmp_path: Path, text: str) -> None:
    spec = write(tmp_path / "bad.py", text)
    with pytest.raises(PolicyError) as caught:
        lab.policy.load(spec)
    line = str(caught.value)
    assert BAD_FILES[text] in line
    assert "bad.py" in line
    assert "\n" not in line
    server = serve(engines("static"), spec)
    assert server.booted == ABSENT
    assert server.reason == line
    assert server.text("log") == line
    assert server.ask("admit", 0, 1, 1, 0, 100, 0) == ABSENT
    assert server.ask("features") == 0


def test_bad_names(engine: Path, serve: Serve, tmp_path: Path) -> None:
    for spec, said in {
        f"{tmp_path}/none.py:P": "none.py: cannot read the policy file: No such file or directory",
        f"{tmp_path}:P": "cannot read the policy file: Is a directory",
        "/no-class.py": "/no-class.py: not a policy; write /path/to/file.py:Class",
        "/a.py:not-a-name": "not a policy; write /path/to/file.py:Class",
    }.items():
        with pytest.raises(PolicyError) as caught:
            lab.policy.load(spec)
        assert said in str(caught.value)
        server = serve(engine, spec)
        assert (server.booted, server.reason) == (ABSENT, str(caught.value))
    assert "must be absolute" in serve(engine, "here.py:P").reason


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("fast", "no controller 'fast'; known: delta-hami, "),
        ("here.py:P", "the path of a policy file must be absolute"),
    ],
)
def test_a_controller_that_cannot_be_used_is_said_once(engine: Path, serve: Serve, wanted: str, said: str) -> None:
    server = serve(engine, "", THIN_PACING=wanted)
    assert (server.booted, server.ask("lines")) == (0, 1)
    line = server.text("log")
    assert line.startswith(f"HOOKLAB_PACING={wanted}: {said}")
    assert line.endswith("; hybrid applies")
    assert server.ask("features") & INSTEAD
    for index, value in ((TARGET, 30), (SMS, 108), (THREADS, 2048)):
        server.ask("poke", index, value)
    assert server.ask("lease", 0, 1_000_000, 1) > 0
    assert server.ask("lease", 0, 1_000_000_000, 2) < 0  # hybrid's answers
    assert not serve(engine, "", THIN_PACING="duty").ask("features") & INSTEAD


def test_faults_are_counted_logged_and_harmless(engine: Path, serve: Serve, faulty: str) -> None:
    server = serve(engine, faulty)
    said = {
        3: "admit answered a bool where an int was expected",
        4: "admit answered 4711, which means nothing",
        5: "admit: {file}:17: ValueError: a policy that raises",
        6: "admit answered a str where an int was expected",
        7: "admit: {file}:22: SystemExit: 3",
    }
    path = faulty.rpartition(":")[0]
    for count, (kind, line) in enumerate(said.items(), 1):
        assert server.ask("admit", 0, 1, kind, 0, 100, 0) == FAULT
        assert server.text("reason") == line.format(file=path)
        assert server.text("log") == line.format(file=path)
        assert server.ask("faults") == count
        assert server.ask("admit", 0, 1, 1, 0, 100, 0) == 0
    for _ in range(995):
        assert server.ask("admit", 0, 1, 5, 0, 100, 0) == FAULT
    assert server.ask("faults") == 1000
    assert server.ask("lines") == 8 + len((16, 32, 64, 128, 256, 512))


NONSENSE = [
    "None", "1.0", "10 ** 30", "-1", "-(2 ** 63)", "1000", "17", "[0]", "self.admit(0, 0, 0, 0, 0, 0)",
    "[0] * 10 ** 17", "0 .__class__", "1 // 0", "shared['a']",
]  # fmt: skip


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_is_a_fault(engines: Callable[[str], Path], serve: Serve, tmp_path: Path, answer: str) -> None:
    spec = write(tmp_path / "p.py", f"class P:\n  {ADMIT}\n    if kind == 1: return 0\n    return {answer}\n")
    server = serve(engines("static"), spec)
    assert server.ask("admit", 0, 1, 2, 0, 100, 0) == FAULT
    assert server.text("reason")
    assert server.ask("admit", 0, 1, 1, 0, 100, 0) == 0


def test_an_enum_is_an_int(engines: Callable[[str], Path], serve: Serve, tmp_path: Path) -> None:
    text = f"import enum\nclass E(enum.IntEnum):\n  OOM = 2\nclass P:\n  {ADMIT} return E.OOM\n"
    assert serve(engines("static"), write(tmp_path / "p.py", text)).ask("admit", 0, 1, 2, 0, 100, 0) == 2


PACER = f"""\
class P:
    {ADMIT} return 0
    def lease(self, device, cost, now, shared):
        if device == 1: self.kept = shared
        if device == 2: return self.kept[0]
        if device == 3: self.part = shared[:1]
        if device == 4: return 0
        if device == 5: shared[0] = -1
        assert len(shared) == 64 and shared.format == "Q" and not shared.readonly
        shared[0] += cost
        shared[1] = now
        return cost if cost < 100 else -cost
    def observe(self, device, busy, window, now, shared):
        shared[2] = busy * 100 // window
        return now
    def settle(self, device, size, kind, ok): return None if ok else "no"
    def release(self, device, size, kind): return size
"""


def test_optional_methods_and_shared_words(engine: Path, serve: Serve, tmp_path: Path) -> None:
    server = serve(engine, write(tmp_path / "pacer.py", PACER))
    assert server.ask("features") == 15
    assert server.ask("lease", 0, 7, 2**64 - 1) == 7
    assert server.ask("lease", 0, 100, 5) == -100
    assert [server.ask("word", index) for index in range(3)] == [107, 5, 0]
    assert server.ask("observe", 0, 30, 40, 9) == 9
    assert server.ask("word", 2) == 75
    assert server.ask("settle", 0, 1, 1, 1) == 0
    assert server.ask("settle", 0, 1, 1, 0) == FAULT
    assert server.ask("release", 0, 5, 1) == 5
    assert server.ask("lease", 1, 1, 0) == 1  # keeps the view, which is dead afterwards:
    assert server.ask("lease", 2, 1, 0) == FAULT
    assert "released memoryview" in server.text("reason")
    assert server.ask("lease", 3, 1, 0) == FAULT
    assert "keeps a view of the shared words" in server.text("reason")
    assert server.ask("lease", 4, 1, 0) == FAULT
    assert server.ask("lease", 5, 1, 0) == FAULT


def test_without_optional_methods(engine: Path, serve: Serve, tmp_path: Path) -> None:
    server = serve(engine, write(tmp_path / "p.py", f"class P:\n  {ADMIT} return 0\n"))
    assert server.ask("features") == 0
    assert server.ask("lease", 0, 77, 0) == 77
    assert [server.ask("observe", 0, 1, 2, 3), server.ask("settle", 0, 1, 1, 1), server.ask("release", 0, 1, 1)] == [
        0
    ] * 3


def test_policies_answer_alike_in_every_process(engine: Path, serve: Serve, tmp_path: Path) -> None:
    """The order of a set of strings depends on the hash seed of an interpreter: the engine fixes it."""
    body = "return list({str(n) for n in range(1000)}).index('7') % 2 * 2"
    spec = write(tmp_path / "p.py", f"class P:\n  {ADMIT} {body}\n")
    answers = {serve(engine, spec, PYTHONHASHSEED=str(seed)).ask("admit", 0, 1, 2, 0, 100, 0) for seed in range(6)}
    assert len(answers) == 1
