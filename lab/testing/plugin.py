"""The pytest plugin (entry point ``hooklab``): scenario files as test items.

    pytest scenarios/ --hooklab-interposer build/libvgpu.so --hooklab-baseline known.yaml

Files are collected once an option ``--hooklab-...`` is given, or where the ini value ``hooklab_scenarios`` (globs under
the root folder) names them; a YAML file without ``containers:`` or ``simulate:`` is left to others. One item a run; its
name is the scenario's id, its tags and report ids are keywords (``-k``). An invalid run fails, an unknown one fails,
too, unless allowed, a failure that the baseline expects is an expected failure, one that it expects in vain a failure.

pytest loads this module in every project of the environment: it imports nothing of hooklab before it has a file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionInfo, TerminalRepr

    from lab.report.baseline import Entry
    from lab.report.model import RunReport
    from lab.scenario.model import Scenario

_SUFFIXES = (".yaml", ".yml")
_LOOKS_LIKE_ONE = re.compile(r"^(containers|simulate):", re.MULTILINE)
_INI = "hooklab_scenarios"
_WIDTH = 160


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, named as those of ``hooklab run``."""
    group = parser.getgroup("hooklab", "hooklab: scenario files")
    group.addoption("--hooklab-interposer", metavar="builtin|none|PATH", help="the library under test")
    group.addoption("--hooklab-dialect", metavar="NAME|FILE", help="how limits reach the interposer")
    group.addoption("--hooklab-on", choices=("fake", "real"), help="the driver below (default: fake)")
    group.addoption("--hooklab-baseline", metavar="FILE", help="failures that are expected, and must happen")
    group.addoption("--hooklab-timeout", metavar="DURATION", help="time limit of each run instead of the file's")
    group.addoption("--hooklab-out", metavar="DIR", help="parent of run directories (default: a folder of pytest's)")
    group.addoption(
        "--hooklab-allow-unknown",
        metavar="CHECK,...|all",
        help="skip, not fail, what only these could not judge",
    )
    parser.addini(_INI, "globs of scenario files, under the root folder", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Says what is wrong with an option before anything runs."""
    config.stash[_SETTINGS] = settings = Settings(config)
    if settings.asked:
        settings.check()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A scenario file, where scenario files are wanted."""
    if file_path.suffix not in _SUFFIXES or not parent.config.stash[_SETTINGS].wants(file_path):
        return None
    if any((folder / "run.json").exists() for folder in file_path.parents):  # the copy that a run directory keeps
        return None
    if not _LOOKS_LIKE_ONE.search(file_path.read_text(encoding="utf-8", errors="replace")):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


class Settings:
    """The options of this session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.baseline: Mapping[str, Entry] | None = None
        self.interposer: str | None = None
        names = ("interposer", "dialect", "on", "baseline", "timeout", "out", "allow_unknown")
        self.values = {name: config.getoption(f"hooklab_{name}") for name in names}
        self.asked = any(value for name, value in self.values.items() if name != "allow_unknown")

    def check(self) -> None:
        """UsageError, one line, for an option that cannot be used."""
        from lab.report import baseline
        from lab.runner.guest import GuestError, interposer_path

        try:
            if self.values["baseline"]:
                self.baseline = baseline.load(self._here(self.values["baseline"]))
            self.interposer = self.values["interposer"]
            if self.interposer not in (None, "builtin", "none"):
                self.interposer = str(interposer_path(str(self._here(self.interposer))))
        except (baseline.BaselineError, GuestError) as error:
            raise pytest.UsageError(f"hooklab: {error}") from None

    def _here(self, path: str) -> Path:
        return self.config.invocation_params.dir / path

    def wants(self, file: Path) -> bool:
        """Whether scenario files are asked for here."""
        if self.asked:
            return True
        if not file.is_relative_to(self.config.rootpath):
            return False
        name = str(file.relative_to(self.config.rootpath))
        return any(fnmatch(name, pattern) for pattern in self.config.getini(_INI))

    def tolerates(self, report: RunReport) -> bool:
        """Whether every check that could not judge is one that may."""
        allowed = str(self.values["allow_unknown"] or "").split(",")
        return "all" in allowed or all(one.check in allowed for one in report.verdicts if one.status == "unknown")

    def out(self, item: pytest.Item) -> Path:
        """Where run directories go."""
        if self.values["out"]:
            return self._here(self.values["out"])
        factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]  # no public way
        return factory.mktemp("hooklab")


_SETTINGS = pytest.StashKey[Settings]()


class ScenarioFile(pytest.File):
    """A scenario file: one item for each run that it makes."""

    def collect(self) -> Iterator[ScenarioItem]:
        """Mistakes of the file fail its collection, each with its line and column."""
        from lab.scenario.load import Overrides, ScenarioError, load

        settings = self.config.stash[_SETTINGS]
        dialect = settings.values["dialect"]
        if dialect and settings._here(dialect).is_file():
            dialect = str(settings._here(dialect))
        overrides = Overrides(interposer=settings.interposer, dialect=dialect, timeout=settings.values["timeout"])
        try:
            scenarios = load(self.path, overrides=overrides)
        except ScenarioError as error:
            raise self.CollectError(str(error)) from None
        for scenario in scenarios:
            yield ScenarioItem.from_parent(self, name=scenario.id, scenario=scenario)


class ScenarioItem(pytest.Item):
    """One run."""

    def __init__(self, *, scenario: Scenario, **more: Any) -> None:
        super().__init__(**more)
        self.scenario = scenario
        self.extra_keyword_matches.update(scenario.tags, scenario.report)

    def runtest(self) -> None:
        """Runs and judges it."""
        from lab.report.baseline import compare
        from lab.report.keep import keep
        from lab.report.model import report_run
        from lab.runner.execute import run_scenario

        settings = self.config.stash[_SETTINGS]
        directory = run_scenario(self.scenario, out=settings.out(self), on=settings.values["on"] or "fake")
        report = keep(report_run(self.scenario, directory))
        facts = {"evidence": report.evidence, "seed": self.scenario.seed, "run directory": str(directory)}
        if self.scenario.report:
            facts["reports"] = ", ".join(self.scenario.report)
        self.user_properties += list(facts.items())
        compared = compare([report], settings.baseline or {})
        if compared.new or compared.stale:
            raise RunFailedError(report, compared.stale)
        if compared.unknown:
            if not settings.tolerates(report):
                raise RunFailedError(report, ())
            pytest.skip(compared.unknown[0])
        for _, known in compared.expected:
            pytest.xfail(known)

    def repr_failure(self, excinfo: ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        """The verdicts, and what a run could not be made for: never a traceback of ours."""
        from lab.runner.guest import GuestError

        if isinstance(excinfo.value, RunFailedError):
            return str(excinfo.value)
        if isinstance(excinfo.value, GuestError):
            return f"hooklab: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the scenario's first process stands."""
        lines = [container.where.line for container in self.scenario.containers]
        return self.path, min(lines, default=1) - 1, self.name


class RunFailedError(Exception):
    """A run that was not as it should be."""

    def __init__(self, report: RunReport, stale: tuple[str, ...]) -> None:
        from rich.console import Console

        from lab.report import terminal

        text = io.StringIO()
        console = Console(file=text, width=_WIDTH, force_terminal=False, color_system=None)
        for line in stale:
            console.print(f"only in the baseline: {line}", markup=False, soft_wrap=True)
        terminal.show(console, report, full=True)
        super().__init__(text.getvalue().rstrip())
