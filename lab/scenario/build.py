"""From valid forms to the dataclasses of lab.scenario.model. Nothing can fail here: what could was checked before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.scenario import schema
from lab.scenario.model import (
    Container,
    ExitStatus,
    Expectation,
    Fault,
    Node,
    Options,
    Planted,
    Position,
    Process,
    Scenario,
    Step,
)
from lab.scenario.tree import Path

Where = Callable[[Path], Position]


def build(form: schema.ScenarioForm, raw: dict[Any, Any], values: dict[str, str], path: str, where: Where) -> Scenario:
    """The scenario of one run. ``where`` gives the position of a path of ``raw``."""
    node = form.node
    swept = ",".join(f"{name}={value}" for name, value in values.items())
    return Scenario(
        name=form.name,
        id=f"{form.name}[{swept}]" if swept else form.name,
        doc=form.doc,
        node=Node(
            gpus=tuple(node.gpus),
            driver=node.driver,
            memory=node.memory,
            context=node.context,
            latency=node.latency,
            time_scale=float(node.time_scale),
            nvml_pids=node.nvml_pids,
            sharing=node.sharing,
            execute=node.execute,
            bridge_files=node.bridge.files,
            bridge_timeout_ns=node.bridge.timeout,
        ),
        containers=tuple(
            _container(name, index, container, where) for index, (name, container) in enumerate(form.containers.items())
        ),
        faults=tuple(_fault(index, fault, where) for index, fault in enumerate(form.faults)),
        expect=tuple(_expectation(index, item, where) for index, item in enumerate(form.expect)),
        timeout_ns=form.timeout,
        seed=form.seed,
        options=Options(**form.options.model_dump()),
        sweep=values,
        tags=tuple(form.tags),
        report=tuple(form.report),
        planted=tuple(Planted(one.fault, one.change or {}, one.fails) for one in form.planted),
        path=path,
        raw=raw,
        simulate=_instead(form.simulate),
        measure=_instead(form.measure),
        needs=tuple(form.needs),
    )


def _instead(form: schema.SimulateForm | schema.MeasureForm | None) -> dict[str, Any] | None:
    """{"kind": which, and its keys}; durations in ns."""
    if form is None:
        return None
    kind = next(iter(form.model_fields_set))
    return {"kind": kind, **getattr(form, kind).model_dump()}


def _limits(value: int | dict[int, int] | None) -> dict[int | None, int]:
    limits: dict[int | None, int] = {}
    if isinstance(value, dict):
        limits.update(value.items())
    elif value is not None:
        limits[None] = value
    return limits


def _container(name: str, index: int, form: schema.ContainerForm, where: Where) -> Container:
    path: Path = ("containers", name)
    return Container(
        name=name,
        index=index,
        memory=_limits(form.limits.memory),
        cores=_limits(form.limits.cores),
        pid_namespace=form.pid_namespace,
        share_region_with=form.share_region_with,
        environment=form.environment,
        interposer=form.interposer,
        dialect=form.dialect,
        host_pids=form.host_pids,
        processes=tuple(
            _process(process, (*path, "processes", number), where) for number, process in enumerate(form.processes)
        ),
        where=where(path),
    )


def _exit_status(value: int | str) -> ExitStatus | None:
    if isinstance(value, str):
        return None
    return ExitStatus(signal=value + schema.SIGNAL_OFFSET) if value < 0 else ExitStatus(code=value)


def _process(form: schema.ProcessForm, path: Path, where: Where) -> Process:
    start = form.start
    return Process(
        name=form.name,
        count=form.count,
        start="after" if isinstance(start, schema.StartAfter) else start,
        after=start.after if isinstance(start, schema.StartAfter) else None,
        steps=_steps(form.steps or [], (*path, "steps"), where, _Counter()),
        run=tuple(form.run or ()),
        environment=form.environment,
        clear_environment=form.clear_environment,
        cwd=form.cwd,
        expect_exit=_exit_status(form.expect_exit),
        where=where(path),
    )


class _Counter:
    """Numbers the steps of one process."""

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        self.next += 1
        return self.next - 1


def _steps(items: list[schema.StepItemForm], path: Path, where: Where, counter: _Counter) -> tuple[Step, ...]:
    return tuple(_step(item, (*path, index), where, counter) for index, item in enumerate(items))


def _step(item: schema.StepItemForm, path: Path, where: Where, counter: _Counter) -> Step:
    field = next(iter(item.model_fields_set))
    op = field.rstrip("_")
    body: schema.StepForm = getattr(item, field)
    index = counter.take()
    nested: list[schema.StepItemForm] = getattr(body, "steps", [])
    arguments = body.model_dump(by_alias=True, exclude_none=True, exclude={"label", "result", "steps"})
    return Step(
        op=op,
        label=body.label or op,
        index=index,
        arguments={key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()},
        where=where((*path, op)),
        steps=_steps(nested, (*path, op, "steps"), where, counter),
        result=None if isinstance(body.result, str) else body.result,
    )


def _fault(index: int, form: schema.FaultForm, where: Where) -> Fault:
    mode, call = "call", form.call or 1
    if form.every is not None:
        mode, call = "every", form.every
    elif form.from_ is not None:
        mode, call = "from", form.from_
    actions = {"return_", "delay", "kill", "meet", "stop", "lost", "spoil"}
    action = next(iter(form.model_fields_set & actions)).rstrip("_")
    until = form.stop if isinstance(form.stop, str) else ""
    return Fault(
        index=index,
        at=form.at,
        mode=mode,
        call=call,
        scope=form.scope,
        process=form.process,
        container=form.container,
        when=form.when,
        action="hold" if until else form.spoil or action,
        code=form.return_ or 0,
        delay_ns=form.delay or 0,
        signal=form.kill or 0,
        meet=form.meet or 0,
        until=until,
        where=where(("faults", index)),
    )


def _expectation(index: int, form: schema.ExpectForm, where: Where) -> Expectation:
    check = next(iter(form.model_fields_set))
    body: schema.Form = getattr(form, check)
    arguments: dict[str, Any] = {}
    for key in body.model_fields_set | set(type(body).model_fields):
        value = getattr(body, key)
        if value is not None and key not in (body.model_extra or {}):
            arguments[key] = _plain(value)
    if body.model_extra:
        arguments["named"] = {key: _plain(value) for key, value in body.model_extra.items()}
    return Expectation(index, check, arguments, where(("expect", index)))


def _plain(value: Any) -> Any:
    """Bounds become (min, max) with None for an open end; lists become tuples."""
    if isinstance(value, (schema.CountBounds, schema.SizeBounds, schema.DurationBounds, schema.NumberBounds)):
        return (value.min, value.max)
    return tuple(value) if isinstance(value, list) else value
