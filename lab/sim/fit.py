"""Fits the start-up model to a table of p99 figures, and says how far the fit may be trusted.

Gauss-Newton on relative errors, parameters scaled by where they started. Leave-one-out: each cell predicted by a fit
that has not seen it; leave-density-out: the same for all cells of one worker count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lab.sim import article
from lab.sim.constants import STARTUP, start_up
from lab.sim.plan import PlanError
from lab.sim.rng import Floats
from lab.sim.startup import play

PARAMETERS = ("init", "init_per_client", "retain_per_client")
Cell = tuple[str, int]  # identity, workers
Table = Mapping[Cell, float]  # p99 in seconds


@dataclass(frozen=True, kw_only=True)
class CellFit:
    """One figure of the table: seconds given and modelled; relative errors in percent."""

    identity: str
    workers: int
    given: float
    model: float
    error: float
    left_out: float  # error of the fit that has not seen this cell
    density_left_out: float  # error of the fit that has seen no cell of this worker count


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted parameters in ns, and errors in percent."""

    values: Mapping[str, int]
    cells: tuple[CellFit, ...]

    @property
    def rms(self) -> float:
        """Of the fit itself."""
        return _rms(cell.error for cell in self.cells)

    @property
    def worst(self) -> float:
        """The largest absolute error of the fit itself."""
        return max(abs(cell.error) for cell in self.cells)

    @property
    def left_out_rms(self) -> float:
        """Of the predictions of cells left out one at a time."""
        return _rms(cell.left_out for cell in self.cells)

    @property
    def density_left_out_worst(self) -> float:
        """The largest absolute error when a whole worker count is left out."""
        return max(abs(cell.density_left_out) for cell in self.cells)


def _rms(values: Iterable[float]) -> float:
    return float(np.sqrt(np.mean(np.square(list(values)))))


def article_table() -> dict[Cell, float]:
    """The nine cells of the article."""
    return {(identity, workers): p99 for identity, row in article.TABLE.items() for workers, p99 in row.items()}


def predict(cells: Iterable[Cell], constants: Mapping[str, int]) -> Floats:
    """p99 in seconds of each cell."""
    found = []
    for identity, workers in cells:
        started = play(article.plan(identity, constants=constants), workers=workers)
        found.append(started.percentile(99) / 1e9)
    return np.array(found)


def solve(table: Table, start: Mapping[str, int], *, rounds: int = 8) -> dict[str, int]:
    """The constants that come closest to `table`, in relative least squares over `PARAMETERS`."""
    if len(table) < len(PARAMETERS):
        raise PlanError(f"a fit of {len(PARAMETERS)} parameters needs at least as many figures, not {len(table)}")
    cells = list(table)
    given = np.array([table[cell] for cell in cells])
    unit = np.array([start[name] for name in PARAMETERS], dtype=np.float64)

    def constants(scaled: Floats) -> dict[str, int]:
        return dict(start) | {name: round(float(value)) for name, value in zip(PARAMETERS, scaled * unit, strict=True)}

    def errors(scaled: Floats) -> Floats:
        found: Floats = predict(cells, constants(scaled)) / given - 1
        return found

    at = np.ones(len(PARAMETERS))
    here = errors(at)
    for _ in range(rounds):
        slope = np.empty((len(cells), len(at)))
        for column in range(len(at)):
            moved = at.copy()
            moved[column] *= 1.002
            slope[:, column] = (errors(moved) - here) / (moved[column] - at[column])
        step = np.linalg.lstsq(slope, -here, rcond=None)[0]
        better = False
        for shorten in (1.0, 0.5, 0.25):
            trial = np.maximum(at + shorten * step, 1e-6)
            found = errors(trial)
            if float(found @ found) < float(here @ here) * (1 - 1e-9):
                at, here, better = trial, found, True
                break
        if not better or float(np.abs(step).max()) < 1e-4:
            break
    return constants(at)


def fit(
    table: Table | None = None, *, left_out: bool = True, progress: Callable[[int, int], None] | None = None
) -> Fit:
    """Fit to `table` (default: the article's). Without `left_out` the left-out errors are those of the fit itself."""
    table = article_table() if table is None else dict(table)
    cells = list(table)
    densities = sorted({workers for _, workers in cells})
    total = 1 + (len(cells) + len(densities) if left_out else 0)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    best = solve(table, start_up())
    step()
    model = dict(zip(cells, predict(cells, best).tolist(), strict=True))
    alone = {cell: model[cell] for cell in cells}
    dense = dict(alone)
    if left_out:
        for cell in cells:
            others = solve({key: value for key, value in table.items() if key != cell}, best)
            alone[cell] = float(predict([cell], others)[0])
            step()
        for workers in densities:
            rest = {key: value for key, value in table.items() if key[1] != workers}
            others = solve(rest, best)
            here = [cell for cell in cells if cell[1] == workers]
            dense.update(zip(here, predict(here, others).tolist(), strict=True))
            step()
    return Fit(
        values={name: best[name] for name in PARAMETERS},
        cells=tuple(
            CellFit(
                identity=cell[0],
                workers=cell[1],
                given=table[cell],
                model=model[cell],
                error=100 * (model[cell] / table[cell] - 1),
                left_out=100 * (alone[cell] / table[cell] - 1),
                density_left_out=100 * (dense[cell] / table[cell] - 1),
            )
            for cell in cells
        ),
    )


def tagged(values: Mapping[str, int]) -> list[tuple[str, int, str, str, str]]:
    """(name, value, unit, tag, source) of every constant, fitted values put in."""
    return [
        (name, values.get(name, constant.value), constant.unit, constant.tag, constant.source)
        for name, constant in STARTUP.items()
    ]
