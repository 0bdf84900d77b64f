"""What a Pod manifest asks of GPUs, in the resource names of HAMi."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.sim.plan import PlanError

PREFIX = "nvidia.com/"
_COPIES = {"Deployment": "replicas", "ReplicaSet": "replicas", "StatefulSet": "replicas", "Job": "parallelism"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One container of a manifest, times `copies`. `memory` in bytes a GPU, or percent of one; None: no limit."""

    name: str
    copies: int
    gpus: int
    memory: int | None
    memory_percent: int | None
    cores: int | None


def read(path: Path) -> list[Request]:
    """Every container that asks for a GPU, of all documents in the file. PlanError in one line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise PlanError(f"{path}: cannot read the manifest: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    found = [request for document in documents for request in _document(document, path)]
    if not found:
        raise PlanError(f"{path}: no container with a limit {PREFIX}gpu")
    return found


def _document(document: Any, path: Path) -> Iterator[Request]:
    if not isinstance(document, Mapping):
        return
    kind, spec, copies = document.get("kind"), document.get("spec"), 1
    if not isinstance(spec, Mapping):
        return
    if kind in _COPIES:
        copies = _number(spec.get(_COPIES[str(kind)], 1), f"{path}: spec.{_COPIES[str(kind)]}")
        template = spec.get("template")
        spec = template.get("spec") if isinstance(template, Mapping) else None
    elif kind != "Pod":
        return
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for container in containers if isinstance(containers, list) else ():
        resources = container.get("resources") if isinstance(container, Mapping) else None
        limits = resources.get("limits") if isinstance(resources, Mapping) else None
        if not isinstance(limits, Mapping) or f"{PREFIX}gpu" not in limits:
            continue
        where = f"{path}: container {container.get('name', '?')}"

        def limit(name: str, where: str = where, limits: Mapping[Any, Any] = limits) -> int | None:
            value = limits.get(PREFIX + name)
            return None if value is None else _number(value, f"{where}: {PREFIX}{name}")

        memory = limit("gpumem")
        yield Request(
            name=str(container.get("name", "?")),
            copies=copies,
            gpus=limit("gpu") or 0,
            memory=None if memory is None else memory << 20,
            memory_percent=limit("gpumem-percentage"),
            cores=limit("gpucores"),
        )


def _number(value: object, where: str) -> int:
    try:
        found = int(str(value))
    except ValueError:
        found = -1
    if found < 0:
        raise PlanError(f"{where}: {value!r} is not a whole number")
    return found
