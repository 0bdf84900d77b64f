"""The command line itself: light start, one line for every error, exit codes, targets. No native part is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli import COMMANDS, main
from lab.cli._targets import TargetError, resolve

BAD = """\
name: five mistakes
node: {gpus: [a100-80gb]}
containers:
  tenant:
    limits: {memory: 4gig}
    processes:
      - name: p
        steps:
          - init
          - free: x
          - alloc: {bytes: 1MiB, as: y, root: dlsym}
expect:
  - outcome: {step: z, ok: 1}
"""


def test_a_light_start() -> None:
    """--version and --help import none of the heavy libraries: a planted import of numpy would be seen here."""
    for option in ("--version", "--help"):
        code = (
            f"import sys; from lab.cli import main; code = main(['{option}']); "
            "heavy = {'numpy', 'pydantic', 'rich', 'ruamel', 'elftools'} & set(sys.modules); "
            "sys.exit(f'imported {heavy}' if heavy else code)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "hooklab" in done.stdout


def test_five_mistakes_are_five_lines(tmp_path: Path, capsys) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert main(["run", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.removeprefix(f"{file}:").split(": ")[0] for line in lines] == [
        "2:15",
        "5:22",
        "10:19",
        "11:41",
        "13:21",
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "Missing argument"),
        (["run", "--on", "sim", "x"], "x: no such file or folder"),
        (["run", "nowhere.yaml"], "no such file or folder"),
        (["run", "@nothing"], "no such scenario; shipped are @all"),
        (["run", "--repeat", "0", "x"], "repeat"),
        (["run", "--frob", "x"], "No such option"),
        (["frob"], "No such command"),
        (["report", "."], "not a run directory"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], part: str, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("hooklab: ")
    assert part in line


def test_a_fault_of_hooklab_itself_is_one_line(capsys, monkeypatch) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("lab.cli._targets.resolve", fail)
    assert main(["run", "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "fault in hooklab: RuntimeError" in line
    assert "planted" in line


def test_every_listed_command_loads(capsys) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0, name
    assert "Usage: hooklab" in capsys.readouterr().out


def test_targets(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.yaml", "a.yml", "sub/c.yaml", "note.txt"):
        (tmp_path / name).write_text("x")
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    for name in ("scenario.yaml", "run.json"):
        (run / name).write_text("x")
    found = resolve([str(tmp_path), str(tmp_path / "b.yaml")])
    assert [path.name for path in found] == ["a.yml", "b.yaml", "c.yaml"]
    assert resolve([str(run)]) == {run / "scenario.yaml": run}
    with pytest.raises(TargetError, match="no scenario files"):
        resolve([str(tmp_path / "runs")])  # a folder of run directories holds no scenarios of its own


def test_shipped_scenarios_are_found_by_name_and_subject() -> None:
    (quickstart,) = resolve(["@quickstart"])
    assert quickstart.name == "quickstart.yaml"
    everything = resolve(["@all"])
    assert quickstart in everything
    assert len(everything) > 5
    corpus = resolve(["@corpus"])
    assert corpus
    assert all("\nreport:" in path.read_text(encoding="utf-8") for path in corpus)
