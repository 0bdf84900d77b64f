"""`hooklab hooks`: is every hook of an interposer reachable by every route, and does it reach the right function?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from lab.hooks.model import Finding, Matrix
    from lab.hooks.project import Project

FILE = click.Path(path_type=Path)


@click.command()
@click.option("--interposer", default="builtin", show_default=True, metavar="builtin|PATH", help="What to examine.")
@click.option("--project", type=FILE, help="What the project means to hook and to pass (TOML).")
@click.option("--dialect", metavar="NAME|FILE", help="How limits reach a foreign interposer.")
@click.option("--static", "only_static", is_flag=True, help="Read the file only; execute nothing.")
@click.option(
    "--surface",
    "surfaces",
    type=FILE,
    multiple=True,
    help="A driver library, stub or list of names to compare with; may be repeated.",
)
@click.option(
    "--tree", type=FILE, help="A source tree whose hook lists are compared (HAMi family, or as the project says)."
)
@click.option(
    "--on", "where", type=click.Choice(["fake", "real"]), default="fake", show_default=True, help="Driver below."
)
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE", help="Fake GPU.")
@click.option("--driver", default="580", show_default=True, metavar="GENERATION", help="Fake driver generation.")
@click.option(
    "--compare-drivers", is_flag=True, help="Compare the fake's resolver with this machine's driver, and stop."
)
@click.option("--explain", metavar="NAME", help="Tell one symbol's whole story.")
@click.option("--baseline", type=FILE, help="Strict expected failures: fail on what is new, and on silent repairs.")
@click.option("--write-baseline", type=FILE, help="Write the faults of this matrix as a baseline.")
@click.option("--html", type=FILE, help="Write the matrix as a page.")
@click.option("--csv", "csv_", type=FILE, help="Write every case.")
@click.option("--sarif", type=FILE, help="Write SARIF 2.1.0.")
@click.option("--junit", type=FILE, help="Write JUnit XML.")
@click.option("--doc", type=FILE, help="Write the document kept in the repository.")
@click.option("--all", "everything", is_flag=True, help="Print every cause.")
def hooks(**options: Any) -> None:
    """Examine the lookup routes of an interposer.

    The static side reads the library (and, with --tree, its sources) and executes nothing. The dynamic side asks for
    every name of the driver over every route, calls what it was given over a driver that records what was reached, and
    prints name × route × version × verdict.

    Exit status: 0 all as decided (or as in the baseline), 1 not, 2 usage.
    """
    from rich.console import Console

    from lab.hooks.baseline import BaselineError
    from lab.hooks.explain import ExplainError
    from lab.hooks.project import ProjectError
    from lab.hooks.static import StaticError
    from lab.hooks.tree import TreeError
    from lab.hooks.walk import WalkError
    from lab.runner.guest import GuestError

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    try:
        sys.exit(_run(console, options))
    except (BaselineError, ExplainError, GuestError, ProjectError, StaticError, TreeError, WalkError) as error:
        raise click.ClickException(str(error)) from None


def _run(console: Console, options: dict[str, Any]) -> int:
    from lab.hooks.project import Project, load_project
    from lab.runner.guest import check_natives

    project = load_project(options["project"]) if options["project"] else Project()
    if options["compare_drivers"]:
        return _compare(console, options)
    tree: list[Finding] = []
    if options["tree"]:
        tree = _tree(console, options["tree"], project)
        if options["interposer"] == "builtin" and not options["sarif"]:
            return 1 if any(finding.fault for finding in tree) else 0
    faults = [finding for finding in tree if finding.fault]
    if options["only_static"] or options["surfaces"]:
        faults += _static(console, options, project)
        if options["only_static"]:
            return 1 if faults else 0
    check_natives()
    matrix = _matrix(options, project)
    return _outputs(console, options, matrix, tree, faults)


def _matrix(options: dict[str, Any], project: Project) -> Matrix:
    from rich.console import Console
    from rich.progress import Progress

    from lab.hooks.matrix import Options, examine

    what = Options(
        interposer=options["interposer"],
        project=project,
        dialect=options["dialect"],
        on=options["where"],
        gpu=options["gpu"],
        driver=options["driver"],
    )
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("walks", total=None)

        def progress(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        return examine(what, progress=progress)


def _outputs(
    console: Console, options: dict[str, Any], matrix: Matrix, tree: list[Finding], faults: list[Finding]
) -> int:
    from lab.hooks import baseline, outputs, terminal
    from lab.hooks.explain import explain
    from lab.spec import load_hooks

    difference = baseline.compare(matrix, baseline.read(options["baseline"])) if options["baseline"] else None
    writers: dict[str, Callable[[], str]] = {
        "html": lambda: outputs.as_html(matrix),
        "csv_": lambda: outputs.as_csv(matrix),
        "sarif": lambda: outputs.as_sarif(matrix, tree=tree),
        "junit": lambda: outputs.as_junit(matrix, difference=difference),
        "doc": lambda: outputs.as_markdown(matrix),
    }
    for key, make in writers.items():
        if options[key]:
            options[key].write_text(make(), encoding="utf-8")
    if options["write_baseline"]:
        count = baseline.write(matrix, options["write_baseline"])
        console.print(f"{options['write_baseline']}: {count} faults expected from now on", highlight=False)
    if options["explain"]:
        for line in explain(matrix, options["explain"], load_hooks()):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    else:
        terminal.show_matrix(console, matrix, everything=options["everything"])
    if difference is not None:
        terminal.show_difference(console, difference)
        return 1 if faults or not difference.same else 0
    wrong = matrix.faults() or [finding for finding in matrix.findings if finding.fault] or faults
    return 1 if wrong and not options["write_baseline"] else 0


def _static(console: Console, options: dict[str, Any], project: Project) -> list[Finding]:
    from lab.hooks import static, terminal
    from lab.hooks.project import decisions
    from lab.runner.guest import interposer_path
    from lab.spec import load_hooks

    path = interposer_path(options["interposer"])
    if path is None:
        raise click.UsageError("--interposer none: there is nothing to examine")
    table = load_hooks()
    library = static.read_library(path)
    decided = decisions(table, project, own=options["interposer"] == "builtin", hooked=library.exports)
    passes = {name: one.reason for name, one in decided.items() if not one.hook}
    surfaces = [static.read_surface(surface) for surface in options["surfaces"]] or [static.shipped(table)]
    terminal.show_coverage(console, [static.compare(library, surface, table, passes) for surface in surfaces])
    declared = sorted(project.declared([hook.name for hook in table.hooks]))
    found = static.traits(library, declared=declared)
    terminal.show_findings(console, found)
    return [finding for finding in found if finding.fault]


def _tree(console: Console, root: Path, project: Project) -> list[Finding]:
    from lab.hooks import terminal
    from lab.hooks.tree import read_tree

    report = read_tree(root, project.tree)
    terminal.show_tree(console, report)
    return list(report.findings)


def _compare(console: Console, options: dict[str, Any]) -> int:
    from lab.hooks import terminal
    from lab.hooks.matrix import Options, compare_drivers
    from lab.runner.guest import check_natives

    check_natives()
    found = compare_drivers(Options(gpu=options["gpu"], driver=options["driver"]))
    terminal.show_findings(console, found)
    console.print(f"{len(found)} lookups answered differently by the fake and this machine's driver", highlight=False)
    return 1 if found else 0
