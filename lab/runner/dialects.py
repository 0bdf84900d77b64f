"""What the dialect of an interposer wants of the runner: directories, files, where its ledger is, a service's place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab.runner.container import Container, Layout, visible_paths
from lab.spec import Dialect


def directories_of(
    dialect: Dialect, own: Path, node: Path, *, books: Layout | None = None
) -> tuple[tuple[Path, str], ...]:
    """(place on this machine, place inside) of what a dialect's interposer writes to: below `own` or `node`.

    ``books``: of the container whose ledger is used, and so its directories, but for those that hold the limits.
    """
    told = {os.path.dirname(form.path) for form in dialect.files}
    theirs = {inside: outside for outside, inside in books.directories if inside not in told} if books else {}
    return tuple(
        (
            theirs.get(one.path)
            or (node / "shared" if one.shared else own / "own") / one.path.strip("/").replace("/", "-"),
            one.path,
        )
        for one in dialect.directories
    )


def write_files(
    dialect: Dialect, container: Container, *, memory: Mapping[int, int], cores: Mapping[int, int], uuids: Sequence[str]
) -> None:
    """Write the files that tell the interposer of a container its limits, before anything is started in it."""
    places = {inside: outside for outside, inside in container.layout.directories}
    for form in dialect.files:
        folder = places[os.path.dirname(form.path)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / os.path.basename(form.path)).write_bytes(form.content(memory=memory, cores=cores, uuids=uuids))


def ledger_file(dialect: Dialect, container: Container) -> Path:
    """Where this machine has the ledger of a container."""
    if dialect.ledger.variable or not dialect.ledger.path:
        return container.region
    for outside, inside in container.layout.directories:
        if inside == os.path.dirname(dialect.ledger.path):
            return outside / os.path.basename(dialect.ledger.path)
    return container.region


def service_container(dialect: Dialect, *, scratch: Path, keep: Iterable[Path | str | None]) -> Container:
    """Where the service of a dialect runs: with the directories that it shares, without interposer."""
    own = scratch / "service"
    layout = Layout(
        name="service",
        scratch=own,
        vgpu=own / "vgpu",
        region_name="none",
        locks=scratch / "vgpulock",
        private_pids=False,
        library=None,
        library_inside="",
        cache=None,
        preload=(),
        keep=visible_paths(*keep),
        directories=tuple(
            pair
            for pair, one in zip(directories_of(dialect, own, scratch), dialect.directories, strict=True)
            if one.shared
        ),
    )
    return Container(layout, isolated=True)
