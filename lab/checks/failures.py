"""What must hold when any driver call fails: no allocation is lost, no result is made up, no output of a failed call is
written. The failure sweep asks these of every run; a scenario may ask them, too."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache

from lab.checks.history import Records, constants
from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Scope, Verdict
from lab.checks.steps import SKIPPED
from lab.scenario.model import Expectation, Instance, Scenario
from lab.scenario.vocabulary import code_name, hook_names

ALLOCATE = (
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocPitch*",
    "cuMemAllocManaged",
    "cuMemAllocAsync*",
    "cuMemAllocFromPoolAsync*",
)
FREE = ("cuMemFree", "cuMemFree_v2", "cuMemFreeAsync*")
ENDS_CONTEXT = ("cuCtxDestroy*", "cuDevicePrimaryCtxReset*", "cuDevicePrimaryCtxRelease*")


@cache
def _ids(patterns: tuple[str, ...]) -> frozenset[int]:
    return frozenset(
        number for number, name in enumerate(hook_names()) if any(fnmatchcase(name, one) for one in patterns)
    )


def no_leak(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """The driver's live allocations of each process are those that its program still holds at its end.

    Judged of processes that played their program to the end, in their last image; one that was killed loses nothing. No
    leak are allocations that a context took with it (while the process holds no physical byte), and those that the
    program was never given and whose undoing the driver itself refused.
    """
    calls, held = run.history.of("CALL"), run.history.of("HELD")
    told = run.evidence == "fake-driver" and scenario.options.history == "calls" and run.complete
    complaints: list[str] = []
    ends_of_steps = run.history.of("STEP_END")
    judged = unjudged = 0
    for instance in Scope.of(scenario, expectation.arguments).instances:
        mine = held[held["process"] == instance.index]
        ends = mine[mine["b"] == 0]
        if run.statuses.get(instance.index, 0) & 0x7F:
            judged += 1
            continue
        if not told or not ends.size:
            unjudged += 1
            continue
        given = ends_of_steps[(ends_of_steps["process"] == instance.index) & (ends_of_steps["result"] == 0)]
        until = int(ends[-1]["time_ns"])
        since = _image_start(instance, given)
        own = calls[(calls["process"] == instance.index) & (calls["time_ns"] <= until) & (calls["time_ns"] >= since)]
        # The program may know an inner PID where the driver knows the host's: its main thread's calls tell which it is.
        main = own[own["tid"] == ends[-1]["tid"]]
        if own.size and not main.size:  # which image the calls belong to cannot be told
            unjudged += 1
            continue
        pid = int(main[-1]["pid"]) if main.size else 0
        own = own[own["pid"] == pid]
        judged += 1
        got = {int(pointer) for pointer in given["b"]}
        complaints += _lost(instance, own, mine[mine["b"] != 0], got, _physical(run, pid, until))
    return Verdict(
        status=INVALID if complaints else VALID if judged and not unjudged else UNKNOWN,
        check="no_leak",
        subject="allocations at the end",
        expected="the driver holds what the programs hold",
        seen=complaints[0] if complaints else f"so in {judged} processes" + (f", {unjudged} unknown" * bool(unjudged)),
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(complaints[:20]),
    )


def _lost(instance: Instance, own: Records, held: Records, given: set[int], physical: int) -> Iterator[str]:
    driver: dict[int, tuple[int, int]] = {}  # pointer -> (bytes, name)
    freed = False
    for record in own[own["result"] == 0]:
        name = int(record["name"])
        if name in _ids(ALLOCATE):
            driver[int(record["b"])] = (int(record["a"]), name)
        elif name in _ids(FREE):
            driver.pop(int(record["b"]), None)
        elif name in _ids(ENDS_CONTEXT):
            freed = True
    program = {int(record["b"]): int(record["a"]) for record in held}
    left = driver.keys() - program.keys()
    refused = sum(int(name) in _ids(FREE) for name in own[own["result"] != 0]["name"])
    never = left - given
    left -= set(sorted(never)[:refused])
    if left and (not freed or physical):
        pointer = min(left)
        size, name = driver[pointer]
        yield (
            f"{instance.label}: the driver holds {len(left)} allocations that the program does not, e.g. {size} bytes "
            f"at {pointer:#x} from {hook_names()[name]}"
        )
    gone = program.keys() - driver.keys()
    if gone and not freed:
        pointer = min(gone)
        yield (
            f"{instance.label}: the program holds {len(gone)} allocations that the driver does not, e.g. "
            f"{program[pointer]} bytes at {pointer:#x}"
        )


def _image_start(instance: Instance, given: Records) -> int:
    """When the image began that played the program to its end: an exec step is ended by the new image."""
    execs = [step.index for step in instance.process.walk() if step.op == "exec"]
    return max((int(record["time_ns"]) for record in given if int(record["step"]) in execs), default=0)


def _physical(run: RunData, pid: int, until: int) -> int:
    """Bytes of the process at that time, contexts and modules left out."""
    kinds = constants()
    own = run.history.of("PHYS")
    own = own[(own["pid"] == pid) & (own["time_ns"] <= until)]
    own = own[(own["extra"] != kinds["HL_KIND_CONTEXT"]) & (own["extra"] != kinds["HL_KIND_MODULE"])]
    return int(own["a"].astype("int64").sum())


def known_results(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Results of driver calls as the programs saw them, each a value of the enum of its library."""
    odd: list[str] = []
    count = 0
    for label, function, record in _ends(expectation, scenario, run):
        count += 1
        result = int(record["result"])
        if code_name(result, function) == f"code {result}":
            odd.append(f"{label}: {function} returned {result}")
    return _verdict(
        expectation, run, odd, subject=f"{count} results", expected="values of the driver's enum", fine="all known"
    )


def outputs_untouched(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Outputs of failed allocations and views (a record of an untouched output reads 0)."""
    odd: list[str] = []
    count = 0
    for label, function, record in _ends(expectation, scenario, run):
        if int(record["result"]) == 0:
            continue
        if function.startswith("cuMemAlloc"):
            count += 1
            if int(record["b"]):
                odd.append(f"{label}: {function} failed and left the pointer {int(record['b']):#x}")
        elif function in ("cuMemGetInfo_v2", "cuDeviceTotalMem_v2") or function.startswith("nvmlDeviceGetMemoryInfo"):
            count += 1
            if int(record["a"]) or int(record["b"]):
                odd.append(f"{label}: {function} failed and left figures")
    return _verdict(
        expectation, run, odd, subject=f"{count} failed calls", expected="outputs as they were", fine="untouched"
    )


def _verdict(
    expectation: Expectation, run: RunData, odd: list[str], *, subject: str, expected: str, fine: str
) -> Verdict:
    return Verdict(
        status=INVALID if odd else VALID if run.complete else UNKNOWN,
        check=expectation.check,
        subject=subject,
        expected=expected,
        seen=odd[0] if odd else fine,
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(odd[:20]),
    )


def _ends(expectation: Expectation, scenario: Scenario, run: RunData) -> Iterator[tuple[str, str, Records]]:
    """(process and step, function, record) of every step end that names a function."""
    names = hook_names()
    steps = {
        (instance.index, step.index): f"{instance.label}, step {step.label}"
        for instance in Scope.of(scenario, expectation.arguments).instances
        for step in instance.process.walk()
        if step.op != "random"  # its record carries counts, and a first unexpected result
    }
    for record in run.history.of("STEP_END"):
        label = steps.get((int(record["process"]), int(record["step"])))
        number = int(record["name"])
        if label and number < len(names) and int(record["result"]) != SKIPPED:
            yield label, names[number], record
