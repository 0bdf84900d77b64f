"""What a scenario needs on this machine before anything is started: containers, environments, faults, room for records.

Pure but for looking at files: nothing here starts a process.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab import native
from lab.identity.protocol import SOCKET
from lab.node.faults import Fault as NodeFault
from lab.policy import load as load_policy
from lab.runner import guest
from lab.runner.container import VGPU, Container, Layout, development_links, visible_paths
from lab.runner.dialects import directories_of, write_files
from lab.runner.guest import BUILTIN_LIBRARY
from lab.scenario import vocabulary
from lab.scenario.model import Container as ContainerModel
from lab.scenario.model import Fault, Instance, Process, Scenario, Step
from lab.spec import Dialect, Profile, load_profile
from lab.spec.profile import node_uuids

HISTORY_LEVELS = {"none": 0, "events": 1, "calls": 2}
_DROPPED = ("HOOKLAB_", "CUDA_DEVICE_", "LIBCUDA_LOG_LEVEL", "CUDA_REDIRECT", "LD_PRELOAD", "LD_LIBRARY_PATH", "TMPDIR")
_MODES = {"call": "nth", "every": "every", "from": "from"}


def profiles(scenario: Scenario) -> tuple[Profile, ...]:
    """The node's cards, with the scenario's own memory size where it has one."""
    return tuple(_resized(load_profile(name), scenario.node.memory) for name in scenario.node.gpus)


def _resized(profile: Profile, total: int | None) -> Profile:
    if total is None:
        return profile
    numbers = {
        "memory.cuda_total_bytes": total,
        "memory.nvml_total_bytes": total + profile.nvml_reserved_bytes,
    }
    return profile.changed(numbers, source="the scenario's node.memory")


def context_bytes(profiles: Sequence[Profile]) -> str:
    """HOOKLAB_CONTEXT_BYTES on a fake node: the first card's; where a card is cut, each instance's own is learned."""
    cut = any(profile.cuts is not None for profile in profiles)
    return "learn" if cut else str(profiles[0].context_bytes)


def node_faults(scenario: Scenario) -> list[tuple[int, NodeFault]]:
    """(index of the scenario's fault, fault as the node knows it): one for each process that a name means."""
    planned = []
    containers = {container.name: container.index for container in scenario.containers}
    for fault in scenario.faults:
        if fault.at in vocabulary.points():
            continue
        aimed = [container for container in scenario.containers if fault.container in (None, container.name)]
        calls = {} if interposer_of(scenario, aimed[0]) == "none" else dialect_of(scenario, aimed[0]).calls
        processes: Iterable[int | None] = (None,)
        if fault.process is not None:
            processes = scenario.process_indices(fault.process, fault.container)
        for process in processes:
            planned.append(
                (
                    fault.index,
                    NodeFault(
                        name=calls.get(fault.at, fault.at),
                        action=fault.action,  # type: ignore[arg-type]  # validated by the scenario's schema
                        call=fault.call,
                        mode=_MODES[fault.mode],  # type: ignore[arg-type]
                        scope=fault.scope,  # type: ignore[arg-type]
                        process=process,
                        container=None if fault.container is None else containers[fault.container],
                        code=fault.code,
                        delay_ns=fault.delay_ns,
                        signal=fault.signal,
                        meet=fault.meet,
                        when=fault.when,  # type: ignore[arg-type]
                    ),
                )
            )
    return planned


def point_faults(scenario: Scenario) -> list[Fault]:
    """Faults at sequence points, which the interposer carries out itself."""
    return [fault for fault in scenario.faults if fault.at in vocabulary.points()]


def point_plan(scenario: Scenario, instance: Instance, slots: Mapping[int, int]) -> dict[str, str]:
    """HOOKLAB_POINTS of one process (shim/common/points.h). ``slots``: scenario fault -> number its records carry."""
    planned = []
    for fault in point_faults(scenario):
        if fault.container not in (None, instance.container.name):
            continue
        if fault.process is not None and instance.index not in scenario.process_indices(fault.process, fault.container):
            continue
        number = signal.SIGSTOP if fault.action == "stop" else fault.signal
        planned.append(f"{vocabulary.points()[fault.at]}:{fault.call}:{int(number)}:{slots[fault.index]}")
    return {"HOOKLAB_POINTS": ",".join(planned)} if planned else {}


def command(words: Sequence[str]) -> list[str]:
    """What a `run:` process is started with; `hooklab` is this installation, wherever its command lies, and `{python}`
    the interpreter that runs it."""
    if words[0] == "hooklab":
        return [sys.executable, "-m", "lab.cli", *words[1:]]
    return [sys.executable if word == "{python}" else word for word in words]


def history_capacity(scenario: Scenario) -> int:
    """Records a run may write at most, by a generous estimate; more are dropped and counted."""
    calls = scenario.options.history == "calls"
    total = 1 << 16
    for instance in scenario.instances():
        steps = sum(_executions(step, 1) for step in instance.process.steps)
        total += 2048 + (steps if instance.process.steps else 1 << 16) * (16 if calls else 10)
    return min(total, 1 << 25)


def _executions(step: Step, times: int) -> int:
    if step.op == "random":
        return times * int(step.arguments.get("threads", 1)) * (int(step.arguments.get("operations", 1000)) + 64)
    if step.op == "parallel":
        times *= int(step.arguments.get("threads", 1))
    if step.op == "repeat":
        times *= int(step.arguments["count"])
        return times + sum(_executions(nested, times) for nested in step.steps)
    return times * int(step.arguments.get("count", 1)) + sum(_executions(nested, times) for nested in step.steps)


def interposer_of(scenario: Scenario, container: ContainerModel) -> str:
    """builtin, none or a path."""
    return container.interposer or scenario.options.interposer or "builtin"


def dialect_of(scenario: Scenario, container: ContainerModel) -> Dialect:
    """How limits reach the interposer of a container.

    The run's dialect is that of the run's interposer: a container that names another is spoken to in that one's. What a
    scenario fixes for the built-in interposer (its dialects alone have sequence points) is not spoken to any other.
    """
    library = interposer_of(scenario, container)
    if container.interposer or library in ("builtin", "none"):
        of_the_run = None if container.interposer else scenario.options.dialect
        return guest.dialect_for(container.dialect or of_the_run, library)
    written = guest.dialect_for(container.dialect, library)
    return (
        guest.dialect_for(scenario.options.dialect, library) if scenario.options.dialect or written.points else written
    )


def other_layout(scenario: Scenario) -> list[dict[str, str]]:
    """Of a scenario that fixes a dialect, and so its ledger file: why another interposer cannot be judged by it."""
    found = []
    for container in scenario.containers:
        if container.dialect is None or container.interposer:
            continue
        wanted = guest.dialect_for(container.dialect, "builtin")
        spoken = dialect_of(scenario, container)
        if spoken.ledger.layout != wanted.ledger.layout:
            why = f"it is about ledgers of layout {wanted.ledger.layout}; those of dialect {spoken.name} have "
            why += f"layout {spoken.ledger.layout}" if spoken.ledger.layout else "none"
            found.append({"what": f"dialect {wanted.name} in container {container.name}", "why": why})
    return found


def make_container(
    scenario: Scenario,
    container: ContainerModel,
    *,
    scratch: Path,
    shared: Container | None,
    isolated: bool,
    cache: Path | None,
    keep: Iterable[Path | str | None],
) -> Container:
    """The container of a scenario, not started. ``shared``: the one whose region file it uses."""
    dialect = dialect_of(scenario, container)
    own = scratch / container.name
    library = guest.interposer_path(interposer_of(scenario, container))
    inside = library_place(dialect, library)
    layout = Layout(
        name=container.name,
        scratch=own,
        vgpu=shared.layout.vgpu if shared else own / "vgpu",
        region_name=shared.layout.region_name if shared else f"{uuid.uuid4()}.cache",
        locks=scratch / "vgpulock",
        private_pids=container.pid_namespace == "private" and isolated,
        library=library,
        library_inside=inside,
        cache=cache,
        preload=tuple(preload_list(inside)) if library else (),
        keep=visible_paths(scratch if not isolated else None, *keep),
        read_only=_host_pid_mounts(container, own, shared.layout.vgpu if shared else own / "vgpu") if isolated else (),
        directories=directories_of(dialect, own, scratch, books=shared.layout if shared else None),
    )
    return Container(layout, isolated=isolated)


HOST_PROCFS = f"{VGPU}/hostproc"


def _host_pid_mounts(container: ContainerModel, own: Path, vgpu: Path) -> tuple[tuple[Path, str], ...]:
    """What a container has, read-only, to find out host PIDs: (path of this machine, path inside)."""
    if container.host_pids == "broker":
        return ((own / "hostpid", os.path.dirname(SOCKET)),)
    if container.host_pids == "procfs":
        (vgpu / os.path.basename(HOST_PROCFS)).mkdir(parents=True, exist_ok=True)
        return ((Path("/proc"), HOST_PROCFS),)
    return ()


def host_pid_variables(container: ContainerModel, *, isolated: bool) -> dict[str, str]:
    """The gates of the tiers that a container has."""
    if not isolated or container.host_pids is None:
        return {}
    return {"broker": {"LIBVGPU_HOSTPID_BROKER": "1"}, "procfs": {"LIBVGPU_HOST_PROCFS": HOST_PROCFS}}[
        container.host_pids
    ]


_UUID = re.compile(r"(?:\{|%7B)uuid:(\d+)(?:/(\d+))?(:bare)?(?:\}|%7D)")


def with_uuids(scenario: Scenario, text: str) -> str:
    """A text, plain or percent-encoded, with the node's UUIDs in place of `{uuid:CARD}`, `{uuid:CARD/NUMBER}` (a MIG
    device) and, without what they begin with, `{uuid:CARD:bare}`."""
    uuids = node_uuids(scenario.seed, profiles(scenario))

    def uuid_of(match: re.Match[str]) -> str:
        found = uuids[int(match[1])][0 if match[2] is None else int(match[2]) + 1]
        return found.partition("-")[2] if match[3] else found

    return _UUID.sub(uuid_of, text)


def filled(scenario: Scenario, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with UUIDs in names and values."""
    return {with_uuids(scenario, key): with_uuids(scenario, value) for key, value in environment.items()}


def names_uuids(scenario: Scenario) -> bool:
    """Whether something in the scenario stands for a UUID: only a fake node's are known beforehand."""
    parts = [(one.environment, [(p.environment, p.steps, p.run) for p in one.processes]) for one in scenario.containers]
    return bool(_UUID.search(str(parts)))


def library_place(dialect: Dialect, library: Path | None) -> str:
    """Where a container has the interposer."""
    return dialect.container_path or (f"{VGPU}/{library.name}" if library else "")


def robust_regions(scenario: Scenario) -> set[str]:
    """Names of the containers whose region file is used from one PID namespace only."""
    spaces: dict[str, set[str]] = {}
    for container in scenario.containers:
        owner = container.share_region_with or container.name
        spaces.setdefault(owner, set()).add(container.name if container.pid_namespace == "private" else "")
    return {
        container.name
        for container in scenario.containers
        if len(spaces[container.share_region_with or container.name]) == 1
    }


def limit_variables(scenario: Scenario, model: ContainerModel, container: Container, *, robust: bool) -> dict[str, str]:
    """A container's limits, each device by its ordinal as Allocate writes them, and its region file.

    Where the dialect has files, they are written.
    """
    count = len(scenario.node.gpus)
    memory = {device: limit for device in range(count) if (limit := model.memory_limit(device)) is not None}
    cores: Mapping[int, int] | int | None = model.cores.get(None)
    each = {device: value for device, value in model.cores.items() if device is not None}
    uuids = [card[0] for card in node_uuids(scenario.seed, profiles(scenario))]
    dialect = dialect_of(scenario, model)
    if container.layout.library is not None:
        every = dict.fromkeys(range(count), cores) if isinstance(cores, int) else {}
        write_files(dialect, container, memory=memory, cores=every | each, uuids=uuids)
    if cores is None:
        cores = each
    return guest.limits(
        dialect,
        memory=memory or None,
        cores=cores or None,
        interposer=container.library_inside,
        region=container.region_inside if container.layout.library else "",
        robust=robust,
        uuids=uuids,
    )


def inherited() -> dict[str, str]:
    """Our own environment without what would reach past the run."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
    if "HOOKLAB_LOG" in os.environ:
        kept["HOOKLAB_LOG"] = os.environ["HOOKLAB_LOG"]
    return kept


def library_path(driver: Path | None, *, needed: bool, scratch: Path) -> dict[str, str]:
    """LD_LIBRARY_PATH of a guest: the fake driver, its links in `scratch`, then what our own environment says."""
    own = os.environ.get("LD_LIBRARY_PATH", "")
    if driver is not None and (needed or own):
        links = development_links(scratch / "driver", driver)
        return {"LD_LIBRARY_PATH": ":".join(filter(None, (str(driver), str(links), own)))}
    return {"LD_LIBRARY_PATH": own} if own else {}


def preload_list(library: str) -> list[str]:
    """What is preloaded for an interposer, in order: a sanitizer build needs its runtime before it."""
    try:
        runtime = str(native.build_info().get("sanitizer_runtime") or "")
    except (OSError, ValueError):
        runtime = ""
    return [runtime, library] if runtime and os.path.basename(library) == BUILTIN_LIBRARY else [library]


def preloaded(container: ContainerModel, process: Process) -> list[str]:
    """What a process preloads of its own, by its variables."""
    text = process.environment.get("LD_PRELOAD", container.environment.get("LD_PRELOAD", ""))
    return [word for word in text.replace(":", " ").split() if word]


def policy_text(policy: str | None) -> str:
    """HOOKLAB_POLICY for a policy as the user wrote it: the file's path made absolute.

    PolicyError, one line, for what is none: the processes would only fall back.
    """
    text = _absolute(policy)
    if text:
        load_policy(text)
    return text


def policy_file(policy: str | None) -> str | None:
    """The file of a policy, so that containers keep it visible."""
    return _absolute(policy).rpartition(":")[0] or None


def _absolute(policy: str | None) -> str:
    if not policy or ":" not in policy:
        return policy or ""
    file, _, name = policy.rpartition(":")
    return f"{os.path.abspath(file)}:{name}"


def process_variables(instance: Instance) -> dict[str, str]:
    """Who a process is in the run."""
    return {"HOOKLAB_CONTAINER": str(instance.container.index), "HOOKLAB_PROCESS": str(instance.index)}
