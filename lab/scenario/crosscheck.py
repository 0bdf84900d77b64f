"""Whether the parts of a scenario fit each other: every name that is used exists and can do what is asked of it.

Works on the plain tree, valid or not, and never raises on a malformed one: whatever has the wrong form is skipped here,
because the schema reports it. That is how one reading finds all mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lab.scenario import arguments, vocabulary
from lab.scenario.tree import Path
from lab.spec import load_profile, profile_names


class Report(Protocol):
    """Receives a problem: the path in the tree, one line, and whether the key rather than the value is wrong."""

    def __call__(self, path: Path, text: str, *, key: bool = False) -> None: ...


NESTED = ("fork", "exec", "parallel", "repeat")
REFERENCES = {  # op -> {argument: op of the step it must name}
    "free": {"what": "alloc"},
    "memset": {"what": "alloc"},
    "write": {"what": "alloc"},
    "read": {"what": "alloc"},
    "copy": {"from": "alloc", "to": "alloc"},
    "module": {"what": "module"},
    "context": {"what": "context"},
}
VALUES = {  # op -> names of the values a, b, c that its STEP_END record carries
    "alloc": ("bytes", "pointer", "ns"),
    "free": ("bytes", "pointer", "ns"),
    "view": ("total", "free", "used"),
    "copy": ("bytes", "wrong", "ns"),
    "memset": ("bytes", "wrong", "ns"),
    "write": ("bytes", "wrong", "ns"),
    "read": ("bytes", "wrong", "ns"),
    "launch": ("verified", "wrong", "ns"),
    "lookup": ("found", "pointer", "status"),
    "random": ("operations", "wrong", "refused"),
}


def values_of(op: str, written: Mapping[Any, Any]) -> tuple[str, ...]:
    """Names of the values of a step, which are a call's own to choose."""
    return arguments.outputs(written.get("with"))[:3] if op == "call" else VALUES.get(op, ())


SHORT = {  # op or check -> the key that a bare value stands for: `free: x` is `free: {what: x}`
    "init": "flags",
    "context": "op",
    "sync": "device",
    "alloc": "bytes",
    "free": "what",
    "memset": "what",
    "write": "what",
    "read": "what",
    "copy": "from",
    "module": "op",
    "launch": "kernel",
    "view": "api",
    "lookup": "name",
    "random": "operations",
    "barrier": "name",
    "fork": "steps",
    "exec": "steps",
    "parallel": "threads",
    "repeat": "count",
    "call": "name",
    "give": "what",
    "take": "what",
    "signal": "signal",
    "exit": "code",
    "never_above": "memory",
    "ledger_empty": "at",
    "no_leak": "at",
    "known_results": "of",
    "outputs_untouched": "of",
    "not_executed": "count",
    "faults_fired": "count",
}


@dataclass(frozen=True)
class _Step:
    op: str
    arguments: dict[Any, Any]
    path: Path  # of the arguments
    label: str


@dataclass(frozen=True)
class _Group:
    name: str
    container: str
    count: int
    steps: tuple[_Step, ...]  # nested ones included
    program: list[Any]  # as written
    after: str | None
    real: bool  # a real command: nothing is known about its calls
    path: Path

    def called(self, reference: object) -> bool:
        return reference in (self.name, *(f"{self.name}.{n}" for n in range(min(self.count, 1024))))


def crosscheck(raw: dict[Any, Any], report: Report) -> None:
    """Calls ``report(path, text)`` for everything in ``raw`` that does not fit."""
    groups = list(_groups(raw))
    containers = _mapping(raw.get("containers"))
    _names(containers, groups, report)
    _devices(raw, groups, report)
    for group in groups:
        _steps_of(group, report)
    _ends(groups, report)
    _faults(raw, groups, containers, report)
    _expectations(raw, groups, containers, report)
    _instead(raw, report)


_BELONGS = {  # expectation -> what it is about, where that is not processes
    "start_up": ("simulate", ("start_up", "phases")),
    "share": ("simulate", ("pacing",)),
    "added": ("measure", ("calls", "program")),
}


def _instead(raw: dict[Any, Any], report: Report) -> None:
    """Processes, virtual time or measuring: one of them, and expectations of the same kind."""
    kinds = [key for key in ("simulate", "measure") if raw.get(key) is not None]
    if not kinds:
        if "containers" in raw and raw["containers"] == {}:
            report(("containers",), "at least one container")
        elif "containers" not in raw:
            report((), "containers is missing (or simulate, or measure)")
    for kind in kinds:
        for key in ("containers", "faults", "measure"):
            if key != kind and raw.get(key):
                report((key,), f"a scenario with {kind} has no {key}", key=True)
    for index, item in enumerate(_items(raw.get("expect"))):
        for check in [item] if isinstance(item, str) else _mapping(item):
            of, parts = _BELONGS.get(check, ("", ()))
            if of != (kinds[0] if kinds else ""):
                said = f"of {of}: {' or '.join(parts)}" if of else "of processes"
                where: Path = ("expect", index) if isinstance(item, str) else ("expect", index, check)
                report(where, f"{check} is an expectation {said}", key=not isinstance(item, str))
            elif of and not any(part in _mapping(raw[of]) for part in parts):
                report(("expect", index, check), f"{check} belongs to {of}: {' or '.join(parts)}", key=True)


def _mapping(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _groups(raw: dict[Any, Any]) -> Iterator[_Group]:
    for container, body in _mapping(raw.get("containers")).items():
        for index, process in enumerate(_items(_mapping(body).get("processes"))):
            process = _mapping(process)
            path = ("containers", container, "processes", index)
            count = process.get("count", 1)
            after = _mapping(process.get("start")).get("after")
            yield _Group(
                name=str(process.get("name", "")),
                container=str(container),
                count=count if isinstance(count, int) and count > 0 else 1,
                steps=tuple(_walk(process.get("steps"), (*path, "steps"))),
                program=_items(process.get("steps")),
                after=after if isinstance(after, str) else None,
                real="run" in process,
                path=path,
            )


def _walk(steps: object, path: Path) -> Iterator[_Step]:
    for index, step in enumerate(_items(steps)):
        if isinstance(step, str):
            yield _Step(step, {}, (*path, index), step)
            continue
        step = _mapping(step)
        if len(step) != 1:
            continue
        op, body = next(iter(step.items()))
        arguments = body if isinstance(body, dict) else {} if body is None else {SHORT.get(op, op): body}
        label = arguments.get("as")
        yield _Step(str(op), arguments, (*path, index, op), label if isinstance(label, str) else str(op))
        if op in NESTED:
            yield from _walk(arguments.get("steps"), (*path, index, op, "steps"))


def _names(containers: dict[Any, Any], groups: list[_Group], report: Report) -> None:
    seen: set[tuple[str, str]] = set()
    for group in groups:
        if group.name and (group.container, group.name) in seen:
            report((*group.path, "name"), f"two processes of container {group.container} are called {group.name!r}")
        seen.add((group.container, group.name))
    for name, body in containers.items():
        other = _mapping(body).get("share_region_with")
        path: Path = ("containers", name, "share_region_with")
        if other is None:
            continue
        if other not in containers:
            report(path, f"no container {other!r}{vocabulary.nearest(other, map(str, containers))}")
        elif other == name:
            report(path, "a container cannot share the region with itself")
        elif "share_region_with" in _mapping(containers[other]):
            report(path, f"container {other!r} itself shares a region; name the one that owns it")


def _devices(raw: dict[Any, Any], groups: list[_Group], report: Report) -> None:
    gpus = _mapping(raw.get("node")).get("gpus", ["default"])
    count = len(gpus) if isinstance(gpus, list) else 16
    for group in groups:
        for step in group.steps:
            device = step.arguments.get("device")
            if isinstance(device, int) and device >= count:
                report((*step.path, "device"), f"no device {device}: the node has {count}")
    for name, body in _mapping(raw.get("containers")).items():
        for kind, limit in _mapping(_mapping(body).get("limits")).items():
            for device in _mapping(limit):
                if isinstance(device, int) and device >= count:
                    report(("containers", name, "limits", kind, device), f"no device {device}: the node has {count}")
    for path, text in _texts((), raw.get("containers")):
        _uuids(("containers", *path), text, gpus if isinstance(gpus, list) else [], report)


def _texts(path: Path, tree: Any) -> Iterator[tuple[Path, str]]:
    """Every text below, keys included."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from (((*path, key), one) for one in (key,) if isinstance(one, str))
            yield from _texts((*path, key), value)
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _texts((*path, number), value)


def _uuids(path: Path, text: str, gpus: Sequence[Any], report: Report) -> None:
    """`{uuid:CARD}`, `{uuid:CARD/NUMBER}` and `{uuid:...:bare}` name devices that the node has."""
    for whole in re.findall(r"\{uuid:[^}]*\}", text):
        match = re.fullmatch(r"\{uuid:(\d+)(?:/(\d+))?(?::bare)?\}", whole)
        if match is None:
            report(path, f"{whole}: write {{uuid:CARD}}, or {{uuid:CARD/NUMBER}} for a MIG device")
            continue
        card, number = int(match[1]), match[2]
        if gpus and card >= len(gpus):
            report(path, f"{whole}: no device {card}: the node has {len(gpus)}")
        elif number and gpus and gpus[card] in profile_names():
            cuts = load_profile(gpus[card]).cuts or ()
            if int(number) >= len(cuts):
                report(path, f"{whole}: {gpus[card]} has {len(cuts)} MIG devices")


def _steps_of(group: _Group, report: Report) -> None:
    made: dict[str, dict[str, Path]] = {"alloc": {}, "module": {}, "context": {}}
    values: set[str] = set()
    for step in group.steps:
        if step.op == "call":
            _call(step, {*values, *(name for known in made.values() for name in known)}, report)
            values |= set(arguments.makes(step.arguments.get("with")))
        if step.op == "take":
            values.add(str(step.arguments.get("what")))
        if step.op == "give":
            given, there = step.arguments.get("what"), {*values, *(name for one in made.values() for name in one)}
            if given not in there:
                report(
                    (*step.path, "what"), f"{given!r} is what no step before it got{vocabulary.nearest(given, there)}"
                )
        for argument, kind in REFERENCES.get(step.op, {}).items():
            name = step.arguments.get(argument)
            if isinstance(name, str) and name not in made[kind]:
                known = made[kind]
                what = {"alloc": "allocated", "module": "loaded", "context": "created"}[kind]
                report((*step.path, argument), f"{name!r} is never {what} before{vocabulary.nearest(name, known)}")
        operation = step.arguments.get("op")
        makes = step.op == "alloc" or (step.op, operation) in (("module", "load"), ("context", "create"))
        label = step.arguments.get("as")
        if not makes or not isinstance(label, str):
            continue
        if label in made[step.op]:
            report((*step.path, "as"), f"{label!r} is used twice in process {group.name}")
        made[step.op][label] = step.path


def _call(step: _Step, known: set[str], report: Report) -> None:
    """Whether a call has as many arguments as its function, of forms that can be passed, and uses what was made."""
    name, given = step.arguments.get("name"), step.arguments.get("with", [])
    path: Path = (*step.path, "with")
    for below, used in arguments.uses(given):
        if used not in known:
            report((*path, *below), f"{used!r} is what no step before it got{vocabulary.nearest(used, known)}")
    if name not in vocabulary.hook_ids() or not isinstance(given, list):
        return
    form = vocabulary.signatures().get(str(name))
    if form is None:
        report((*step.path, "name"), f"{name} has no vendor prototype, so its arguments are not known")
        return
    letters = form_letters(form)
    if len(letters) != len(given):
        report(path, f"{name} takes {len(letters)} arguments, not {len(given)}")
        return
    for index, (letter, one) in enumerate(zip(letters, given, strict=True)):
        by_value = isinstance(one, dict) and "value" in one
        if letter in ("f", "d"):
            report((*path, index), f"{name} takes a floating-point number here, which a call cannot pass")
        elif (letter[0] == "s") != by_value:
            words = "{value: NAME} of a buffer" if letter[0] == "s" else "no buffer by value"
            report((*path, index), f"{name} takes {words} here")
        elif letter[0] == "s" and int(letter[1:]) <= 16:
            report((*path, index), f"{name} takes a small structure by value here, which a call cannot pass")


def form_letters(form: str) -> list[str]:
    """`ps64i` -> `p`, `s64`, `i`."""
    return re.findall(r"s\d+|[a-z]", form)


def _ends(groups: list[_Group], report: Report) -> None:
    def check(steps: list[Any], path: Path) -> None:
        for index, step in enumerate(steps):
            op = step if isinstance(step, str) else next(iter(_mapping(step)), None)
            body = _mapping(_mapping(step).get(op)) if isinstance(op, str) else {}
            if op in ("exec", "exit") and index + 1 < len(steps):
                report((*path, index + 1), f"never reached: the step before is {op}")
            if op in NESTED:
                check(_items(body.get("steps")), (*path, index, op, "steps"))

    after = {group.name: group.after for group in groups}
    for group in groups:
        check(group.program, (*group.path, "steps"))
        if group.after is None:
            continue
        path: Path = (*group.path, "start", "after")
        if group.after not in after:
            report(path, f"no process {group.after!r}{vocabulary.nearest(group.after, after)}")
        elif _reaches(after, group.after, group.name):
            report(path, f"{group.name!r} and {group.after!r} wait for each other")


def _reaches(after: dict[str, str | None], first: str | None, last: str) -> bool:
    seen: set[str] = set()
    while first is not None and first not in seen:
        if first == last:
            return True
        seen.add(first)
        first = after.get(first)
    return False


def _faults(raw: dict[Any, Any], groups: list[_Group], containers: dict[Any, Any], report: Report) -> None:
    for index, fault in enumerate(_items(raw.get("faults"))):
        fault = _mapping(fault)
        path: Path = ("faults", index)
        _where(fault, path, groups, containers, report)
        until = fault.get("stop")
        known = {str(step.arguments.get("name")) for group in groups for step in group.steps if step.op == "barrier"}
        if isinstance(until, str) and until not in known:
            report((*path, "stop"), f"no barrier {until!r}{vocabulary.nearest(until, known)}")
        if "spoil" in fault and fault.get("at") not in vocabulary.spoilt():
            report((*path, "spoil"), f"outputs can be spoilt of {', '.join(vocabulary.spoilt())} only")
        meet = fault.get("meet")
        if not isinstance(meet, int) or isinstance(meet, bool):
            continue
        process = fault.get("process")
        inside = [group for group in groups if fault.get("container") in (None, group.container)]
        if isinstance(process, str):
            if not {"every", "from"} & fault.keys():
                report(path, "one call of one process is one caller; threads of a process meet by `from` or `every`")
            inside = [group for group in inside if group.called(process)]
        if not any(group.real for group in inside):
            callers = sum((1 if isinstance(process, str) else group.count) * _callers(group) for group in inside)
            if meet > callers:
                report((*path, "meet"), f"meet: {meet}, but only {callers} callers can ever arrive")


def _callers(group: _Group) -> int:
    """The most calls that a process of this group (with its children) can have in the driver at once."""
    total = 1
    for step in group.steps:
        threads = step.arguments.get("threads", 1)
        if step.op in ("random", "parallel") and isinstance(threads, int):
            total = max(total, threads)
    return total + sum(step.op == "fork" for step in group.steps)


def _where(body: dict[Any, Any], path: Path, groups: list[_Group], containers: dict[Any, Any], report: Report) -> None:
    process, container = body.get("process"), body.get("container")
    if isinstance(container, str) and container not in containers:
        report((*path, "container"), f"no container {container!r}{vocabulary.nearest(container, map(str, containers))}")
        return
    inside = [group for group in groups if container in (None, group.container)]
    if isinstance(process, str) and not any(group.called(process) for group in inside):
        names = [group.name for group in inside]
        report((*path, "process"), f"no process {process!r}{vocabulary.nearest(process, names)}")


def _expectations(raw: dict[Any, Any], groups: list[_Group], containers: dict[Any, Any], report: Report) -> None:
    faults = _items(raw.get("faults"))
    for index, item in enumerate(_items(raw.get("expect"))):
        item = _mapping(item)
        if len(item) != 1:
            continue
        check, body = next(iter(item.items()))
        body = _mapping(body)
        path: Path = ("expect", index, check)
        _where(body, path, groups, containers, report)
        steps = _named_steps(body, groups, path, report) if "step" in body else []
        if check == "outcome":
            _outcome(body, path, report)
        elif check == "view":
            _view(body, steps, path, report)
        elif check == "values":
            _values(body, steps, path, report)
        elif check == "reported":
            _reported(body, groups, path, report)
        elif check == "bridged" and _mapping(raw.get("node")).get("execute") != "bridge":
            report(path, "nothing goes over a bridge without node: {execute: bridge}")
        elif check == "held":
            _held(body, groups, path, report)
        elif check in ("calls", "no_leak") and _mapping(raw.get("options")).get("history") != "calls":
            report(path, "calls are only recorded with options: {history: calls}")
        elif check == "faults_fired":
            fault = body.get("fault")
            if isinstance(fault, int) and fault >= len(faults):
                report((*path, "fault"), f"no fault {fault}: there are {len(faults)}, counted from 0")


def _named_steps(body: dict[Any, Any], groups: list[_Group], path: Path, report: Report) -> list[_Step]:
    name = body["step"]
    inside = [
        group
        for group in groups
        if body.get("container") in (None, group.container)
        and (body.get("process") is None or group.called(body["process"]))
    ]
    if not isinstance(name, str) or not inside:
        return []
    found = [step for group in inside for step in group.steps if step.label == name]
    if not found:
        labels = {step.label for group in inside for step in group.steps}
        known = f"; steps are {', '.join(sorted(labels))}" if labels and len(labels) <= 12 else ""
        report((*path, "step"), f"no step {name!r}{vocabulary.nearest(name, labels) or known}")
    return found


def _outcome(body: dict[Any, Any], path: Path, report: Report) -> None:
    keys = [key for key in body if key not in ("step", "process", "container")]
    for key in keys:
        if str(key) not in vocabulary.codes():
            report((*path, key), f"unknown result {key!r}{vocabulary.nearest(key, vocabulary.codes())}", key=True)
    if not keys:
        report(path, "an outcome names at least one result, e.g. ok: 1")


def _view(body: dict[Any, Any], steps: list[_Step], path: Path, report: Report) -> None:
    if not set(body) & {"total", "free", "used"}:
        report(path, "a view expectation says total, free or used")
    for step in steps:
        if step.op != "view":
            report((*path, "step"), f"step {step.label!r} is {step.op}, not a view")
            continue
        api = step.arguments.get("api", "cuda")
        missing = {"cuda": ("used",), "total": ("free", "used")}.get(api if isinstance(api, str) else "", ())
        for key in missing:
            if key in body:
                report((*path, key), f"a view with api: {api} has no {key}", key=True)


def _values(body: dict[Any, Any], steps: list[_Step], path: Path, report: Report) -> None:
    keys = [key for key in body if key not in ("step", "process", "container")]
    if not keys:
        report(path, "values names at least one value, e.g. wrong: 0")
    for step in steps:
        known = values_of(step.op, step.arguments)
        for key in keys:
            if key not in known:
                names = ", ".join(known) or "none"
                report((*path, key), f"step {step.label!r} ({step.op}) has no value {key!r}; it has {names}", key=True)


def _reported(body: dict[Any, Any], groups: list[_Group], path: Path, report: Report) -> None:
    for group in groups:
        if group.called(body.get("process")) and not group.real:
            report((*path, "process"), f"process {group.name!r} plays steps; only a `run` program reports figures")


def _held(body: dict[Any, Any], groups: list[_Group], path: Path, report: Report) -> None:
    known = {str(step.arguments.get("name")) for group in groups for step in group.steps if step.op == "barrier"}
    if str(body.get("barrier")) not in known:
        report(
            (*path, "barrier"), f"no barrier {body.get('barrier')!r}{vocabulary.nearest(body.get('barrier'), known)}"
        )
