"""The matrix of lookup routes: our shim is clean, so is a faithful example; each planted fault is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.hooks import matrix as matrix_module
from lab.hooks import model
from lab.hooks.matrix import FIRST_HOSTS, OUTER_HOSTS, Options
from lab.hooks.model import CRASH, ESCAPE, HANG, HOOKED, OUT, PASSES, WRONG, Matrix
from lab.hooks.outputs import as_markdown
from lab.spec import load_hooks

Examine = Callable[..., Matrix]
RESOLVERS = {"resolver1", "resolver2", "depth3", "entry-point"}
BY_NAME = {"link", "dlsym", "default", "next", "dlvsym"}
LOOKED_UP = BY_NAME - {"link"}


def found(matrix: Matrix) -> set[tuple[str, str, str]]:
    """(verdict, name, route) of everything that is not right."""
    return {(cell.verdict, cell.name, cell.route) for cell in matrix.faults()}


def kinds(matrix: Matrix) -> set[str]:
    return {finding.kind for finding in matrix.findings if finding.fault}


def test_our_shim_is_clean_on_every_route_of_every_host(ours: Matrix) -> None:
    assert found(ours) == set()
    assert [finding for finding in ours.findings if finding.fault] == []
    seen = {(cell.host, cell.route) for cell in ours.cells}
    assert seen >= {(host, route) for host in FIRST_HOSTS for route in model.ROUTES[1:]} - {("jit", "next")}


def test_the_matrix_covers_every_function_of_the_driver(ours: Matrix) -> None:
    table = load_hooks()
    functions = {hook.name for hook in table.hooks if hook.kind == "func" and hook.fake != "absent"}
    judged = {cell.name for cell in ours.cells}
    assert {name for name in functions - judged if not name.startswith("cudbg")} == set()
    assert len(judged) >= 1000
    hooked = {hook.name for hook in table.hooks if hook.hooked} & functions
    assert {cell.name for cell in ours.cells if cell.verdict == HOOKED} == hooked


def test_versions_stand_at_both_sides_of_every_boundary(ours: Matrix) -> None:
    table = load_hooks()
    asked = {
        (cell.version, cell.flags) for cell in ours.cells if cell.route == "resolver2" and cell.name == "cuMemAlloc_v2"
    }
    since = table["cuMemAlloc_v2"].since
    assert {(since, flags) for flags in (0, 1, 2)} | {(since + 10, flags) for flags in (0, 1, 2)} <= asked
    older = {cell.version for cell in ours.cells if cell.route == "resolver2" and cell.name == "cuMemAlloc"}
    assert since - 10 in older


def test_every_pass_has_a_reason(ours: Matrix) -> None:
    assert {cell.note for cell in ours.cells if cell.verdict == PASSES} <= {hook.reason for hook in load_hooks().hooks}
    assert all(decision.hook or decision.reason for decision in ours.decisions.values())
    graphs = [name for name in ours.decisions if name.startswith("cuGraph")]
    assert graphs
    assert all(ours.decisions[name].hook or ours.decisions[name].reason for name in graphs)


def test_other_namespaces_and_deep_binding_are_out_of_reach_and_nothing_else(ours: Matrix) -> None:
    assert {cell.host for cell in ours.cells if cell.verdict == OUT} == set(OUTER_HOSTS)
    assert {cell.verdict for cell in ours.cells if cell.host in OUTER_HOSTS} == {OUT}


def test_allocations_take_the_same_on_every_route(ours: Matrix) -> None:
    for name in {one.allocate for one in ours.ledger}:
        rows = [one for one in ours.ledger if one.allocate == name]
        assert len({one.route for one in rows}) >= 7, name
        # a pool's first step is 32 MiB, and that is what its first 4 MiB cost
        assert {(one.taken, one.left) for one in rows} == {((32 if "Async" in name else 4) << 20, 0)}, name


def test_the_document_is_what_the_matrix_says(ours: Matrix, root: Path) -> None:
    assert (root / "docs" / "hooks.md").read_text(encoding="utf-8") == as_markdown(ours), (
        "make it again: hooklab hooks --doc docs/hooks.md"
    )


def test_the_clean_twin_is_clean(examine: Examine, twin: Callable[..., Path]) -> None:
    matrix = examine(twin(), hosts=FIRST_HOSTS)
    assert found(matrix) == set()
    assert kinds(matrix) == set()
    assert matrix.counts()[HOOKED] > 900


def every(verdict: str, names: set[str], routes: set[str]) -> set[tuple[str, str, str]]:
    return {(verdict, name, route) for name in names for route in routes}


ASYNC = {"cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz"}
RESOLVER = {"cuGetProcAddress", "cuGetProcAddress_v2"}
NVML = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFanSpeed_v2"}
PLANTED = {
    # fault: (must be among the cells, no other routes may be wrong, findings that must be there)
    "NO_RESOLVER": (every(ESCAPE, {"cuMemAlloc_v2"}, RESOLVERS), BY_NAME | RESOLVERS, {"no-resolver"}),
    "V1_ONLY": (
        every(ESCAPE, {"cuMemAlloc_v2"}, {"resolver2", "depth3", "entry-point"}),
        BY_NAME | RESOLVERS,
        {"one-resolver"},
    ),
    "RESOLVER_LEAK": (every(ESCAPE, {"cuMemAlloc_v2"}, {"depth3", "entry-point"}), RESOLVERS, set()),
    "NEXT_FORWARDED": (every(ESCAPE, {"cuMemAlloc_v2"}, {"next"}), {"next"}, set()),
    "SHIFTED": (every(WRONG, {"cuMemAlloc_v2"}, BY_NAME | RESOLVERS), BY_NAME | RESOLVERS, {"ledger-failed"}),
    "V2_V1_ARGS": (every(WRONG, {"nvmlDeviceGetFanSpeed_v2"}, BY_NAME), BY_NAME, set()),
    "NO_PTSZ": (every(ESCAPE, ASYNC, BY_NAME | RESOLVERS), BY_NAME | RESOLVERS, {"declared-not-exported"}),
    "WIDE_PREFIX": (every(WRONG, {"cuCtxGetDevice"}, {"dlsym"}), LOOKED_UP, {"prefix-too-wide"}),
    "SELF_BY_PATH": (every(CRASH, {"cuMemAlloc_v2"}, BY_NAME | RESOLVERS), BY_NAME | RESOLVERS, {"ledger-unmeasured"}),
    "ABSENT": (every(WRONG, {"cuCheckpointOperationComplete"}, {"dlsym", "default"}), LOOKED_UP, set()),
    "HIDDEN": (every(ESCAPE, {"cuMemAlloc_v2"} | NVML, BY_NAME), BY_NAME | RESOLVERS, {"intercepts-nothing"}),
    "NO_NVML": (every(ESCAPE, NVML, BY_NAME), BY_NAME, {"library-lost"}),
    "NEWEST": (every(WRONG, {"cuMemAlloc"}, {"resolver2"}), RESOLVERS, set()),
    "INVENTS": (every(WRONG, {"cuMemAllocAsync"}, {"resolver2"}), RESOLVERS, set()),
    "ALLOCATES": (set(), set(), {"lookup-allocates"}),
    "HANGS": (every(HANG, {"cuMemFreeAsync"}, {"dlsym", "default", "next"}), LOOKED_UP, set()),
    "DROPPED": (set(), set(), {"ledger-left"}),
}


@pytest.mark.report("B28", plants="HANGS")
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_named(examine: Examine, twin: Callable[..., Path], fault: str) -> None:
    cells, routes, findings = PLANTED[fault]
    hosts = (
        ("program", "plugin-local") if fault == "NEXT_FORWARDED" else ("program",)
    )  # behind the twin, next is libcuda
    matrix = examine(twin(fault), hosts=hosts)
    wrong = found(matrix)
    assert cells <= wrong
    assert {route for _, _, route in wrong} <= routes
    assert findings <= kinds(matrix)
    if not findings:
        assert kinds(matrix) <= {"ledger-unmeasured", "ledger-uneven"}


@pytest.mark.report("B31", plants="SELF_BY_PATH")
def test_a_planted_crash_leaves_the_other_cases_judged(examine: Examine, twin: Callable[..., Path]) -> None:
    crashed, clean = examine(twin("SELF_BY_PATH")), examine(twin())
    assert len(crashed.cells) == len(clean.cells)
    assert {cell.name for cell in crashed.faults()} == {"cuMemAlloc_v2"}


def test_an_example_from_elsewhere_needs_no_project(examine: Examine, twin: Callable[..., Path]) -> None:
    """Without promises, what it answers for is what it hooks; hookworthy names that it leaves alone are gaps."""
    from lab.hooks.project import Project

    matrix = examine(twin("RESOLVER_LEAK"), project=Project(dialect="hooklab"))
    assert (ESCAPE, "cuMemAlloc_v2", "depth3") in found(matrix)
    assert (model.GAP, "cuMemAllocManaged", "dlsym") in found(matrix)
    assert matrix.decisions["cuCtxGetDevice"].reason


def test_two_drivers_that_answer_alike_agree_and_a_difference_is_named(
    mini: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The miniature driver stands for the machine's: it lacks one name and refuses no version."""
    monkeypatch.setattr(matrix_module, "real_driver", lambda: native / "fake")
    assert matrix_module.compare_drivers(Options()) == []
    monkeypatch.setattr(matrix_module, "real_driver", lambda: mini)
    differences = matrix_module.compare_drivers(Options())
    assert "cuCtxCreate_v4 by resolver2 version 12050 flags 0" in {finding.subject for finding in differences}
    assert {finding.kind for finding in differences} == {"drivers-differ"}
