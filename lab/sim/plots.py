"""Figures, with matplotlib (extra ``sim``). Files only: no window is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.sim.grade import Run
from lab.sim.plan import PlanError

try:
    import matplotlib
except ImportError:
    raise PlanError("plots need matplotlib: pip install 'hooklab[sim]'") from None

matplotlib.use("Agg")

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _save(figure: Figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    try:
        figure.savefig(path, dpi=120, bbox_inches="tight")
    except ValueError as error:  # an ending that matplotlib cannot write
        raise PlanError(f"{path}: {str(error).splitlines()[0]}") from None
    finally:
        plt.close(figure)


def started(path: Path, series: Sequence[tuple[str, Sequence[int]]]) -> None:
    """For each named start-up (latencies in ns), which share of its processes had started by when."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, latencies in series:
        times = np.sort(np.asarray(latencies)) / 1e9
        axes.step(times, np.arange(1, len(times) + 1) * 100 / len(times), where="post", label=name)
    axes.set(xlabel="seconds since release", ylabel="processes started, %", ylim=(0, 101), title="start-up (simulated)")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def shares(path: Path, runs: Sequence[Run]) -> None:
    """Target against achieved over time: a panel a case, a line a controller and tenant (first seed, largest GPU)."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(run.case.name for run in runs))
    figure, panels = plt.subplots(len(names), 1, figsize=(8, 2.6 * len(names)), squeeze=False)
    for axes, name in zip(panels[:, 0], names, strict=True):
        here = [run for run in runs if run.case.name == name]
        seed, sms = min(run.seed for run in here), max(run.sms for run in here)
        for run in here:
            if (run.seed, run.sms) != (seed, sms):
                continue
            for tenant, (_, target) in enumerate(run.case.tenants):
                label = run.controller if run.case.alone else f"{run.controller} ({target})"
                axes.plot(np.arange(1, len(run.shares) + 1), run.shares[:, tenant], label=label)
        for target in {target for _, target in here[0].case.tenants}:
            axes.axhline(target, color="black", linestyle=":", linewidth=1)
        axes.set(title=f"{name}, {sms} SMs (simulated)", ylabel="share, %", ylim=(0, 102))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2)
    panels[-1, 0].set_xlabel("seconds")
    figure.tight_layout()
    _save(figure, path)
