"""Loading: every mistake at once with its position, sweeps, overrides, and the copy that a run keeps.

Strategy: a good file, then each kind of mistake planted into it at a known line and column; a mistake that loads is a
failure of this test, so no check of the schema can be lost unseen.
"""

import dataclasses
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.scenario import arguments
from lab.scenario.load import Overrides, ScenarioError, dump, load, loads
from lab.scenario.model import ExitStatus, Scenario
from lab.scenario.tree import Problem

GOOD = textwrap.dedent(
    """\
    name: race
    node: {gpus: [a100-80g, t4-16g], driver: "580"}
    containers:
      tenant:
        limits: {memory: 4GiB, cores: {0: 30}}
        processes:
          - name: racer
            count: 2
            start: barrier
            steps:
              - init
              - alloc: {bytes: 2400MiB, as: x}
              - fork: {steps: [sync, {exit: 3}]}
              - free: x
              - exit: 7
            expect_exit: 7
          - name: late
            start: {after: racer}
            run: [/bin/true, -x]
            expect_exit: SIGTERM
      other:
        share_region_with: tenant
        processes:
          - {name: idle, steps: [{view: {api: nvml, as: v}}], expect_exit: any}
    faults:
      - {at: cuMemAlloc_v2, meet: 2}
      - {at: cuMemFree_v2, every: 3, return: CUDA_ERROR_UNKNOWN, process: racer.1}
    expect:
      - outcome: {step: x, ok: 1, oom: {min: 1, max: 2}}
      - never_above: {memory: 4GiB}
      - view: {step: v, total: 4GiB, free: {max: 4GiB}}
      - exit: {process: racer, code: 7, count: 2}
      - ledger_empty
    """
)


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        loads(text, "f")
    return [str(problem) for problem in caught.value.problems]


def test_a_good_file() -> None:
    (scenario,) = loads(GOOD, "f")
    assert [instance.label for instance in scenario.instances()] == ["racer.0", "racer.1", "late", "idle"]
    assert scenario.process_indices("racer") == (0, 1)
    assert scenario.process_indices("racer.1") == (1,)
    racer, late = scenario.containers[0].processes
    assert [(step.op, step.label, step.index) for step in racer.walk()] == [
        ("init", "init", 0),
        ("alloc", "x", 1),
        ("fork", "fork", 2),
        ("sync", "sync", 3),
        ("exit", "exit", 4),
        ("free", "free", 5),
        ("exit", "exit", 6),
    ]
    assert racer.steps[1].arguments == {"bytes": 2400 << 20, "kind": "sync", "count": 1}
    assert racer.expect_exit == ExitStatus(code=7)
    assert (late.start, late.after, late.run, late.expect_exit) == (
        "after",
        "racer",
        ("/bin/true", "-x"),
        ExitStatus(signal=15),
    )
    assert scenario.containers[1].processes[0].expect_exit is None
    assert scenario.containers[0].memory_limit(1) == 4 << 30
    assert scenario.containers[0].cores == {0: 30}
    meet, free = scenario.faults
    assert (meet.mode, meet.call, meet.action, meet.meet, meet.scope) == ("call", 1, "meet", 2, "process")
    assert (free.mode, free.call, free.action, free.code) == ("every", 3, "return", 999)
    assert scenario.expect[0].arguments["named"] == {"ok": (1, 1), "oom": (1, 2)}
    assert str(scenario.expect[0].where) == "f:29:5"
    assert str(racer.steps[1].where) == "f:12:13"


def test_arguments_of_a_call_in_their_plain_form() -> None:
    written = (
        "call: {name: cuMemCreate, with: [{out: h, was: 7}, 2MiB, {struct: {0: 1, 8: x, 16: 4GiB}, size: 32}, null]}"
    )
    (scenario,) = loads(GOOD.replace("free: x", written), "f")
    call = scenario.containers[0].processes[0].steps[3]
    buffer = {"struct": {0: (4, 1), 8: (8, "x"), 16: (8, 4 << 30)}, "size": 32, "as": "", "out": {}}
    assert call.arguments == {"name": "cuMemCreate", "with": ({"out": "h", "was": 7}, 2 << 20, buffer, 0)}
    assert arguments.encode(call.arguments["with"]) == ("oh:7,n2097152,b:32:4@0=1/8@8=rx/8@16=4294967296:,n0")
    (again,) = loads(dump(scenario), "f")
    assert again.containers[0].processes[0].steps[3].arguments == call.arguments


MISTAKES = [  # (text in the good file, what replaces it, position, part of the message)
    ("[a100-80g, t4-16g]", "[a100-80gb]", "2:15", "did you mean 'a100-80g'"),
    ('"580"', "579", "2:42", "unknown driver generation 579"),
    ("cores: {0: 30}", "cores: {2: 30}", "5:39", "no device 2"),
    ("run: [/bin/true, -x]", 'run: [a]\n        environment: {A: "{uuid:2}"}', "20:26", "no device 2"),
    ("run: [/bin/true, -x]", 'run: [a]\n        environment: {A: "{uuid:0/1}"}', "20:26", "a100-80g has 0 MIG dev"),
    ("run: [/bin/true, -x]", 'run: [a]\n        environment: {A: "{uuid:x}"}', "20:26", "write {uuid:CARD}"),
    ("cores: {0: 30}", "cores: 101", "5:35", "at most 100"),
    ("memory: 4GiB, cores", "memory: 4GB GiB, cores", "5:22", "not a size"),
    ("memory: 4GiB, cores", "memorry: 4GiB, cores", "5:14", "did you mean 'memory'"),
    ("count: 2\n", "count: two\n", "8:16", "whole number"),
    ("start: barrier", "start: sometime", "9:16", "'now' or 'barrier'"),
    ("- init", "- innit", "11:13", "did you mean 'init'"),
    ("2400MiB, as: x}", "2400MiB, as: x, route: telepathy}", "12:51", "'dlsym'"),
    ("alloc: {bytes: 2400MiB, as: x}", "alloc: {as: x}", "12:20", "needs bytes"),
    ("- fork: {steps: [sync, {exit: 3}]}", "- exec: {steps: [sync]}", "14:13", "never reached"),
    ("free: x", "free: y", "14:19", "'y' is never allocated before"),
    ("free: x", "{free: x, init: null}", "14:13", "exactly one operation"),
    ("exit: 7\n", "exit: 256\n", "15:19", "at most 255"),
    ("after: racer", "after: raser", "18:24", "did you mean 'racer'"),
    ("run: [/bin/true, -x]", "run: []", "19:14", "must not be empty"),
    ("expect_exit: SIGTERM", "expect_exit: SIGTRM", "20:22", "unknown signal"),
    ("share_region_with: tenant", "share_region_with: other", "22:24", "itself"),
    ("name: idle", "name: ''", "24:16", "not a name"),
    ("cuMemAlloc_v2", "cuMemAllok_v2", "26:10", "did you mean 'cuMemAlloc_v2'"),
    ("meet: 2}", "meet: 2, container: other}", "26:31", "only 1 callers"),
    ("meet: 2}", "meet: 2, kill: SIGKILL}", "26:5", "exactly one action"),
    ("meet: 2}", "meet: 2, process: racer}", "26:5", "threads of a process meet by `from` or `every`"),
    ("meet: 2}", "stop: dawn}", "26:31", "no barrier 'dawn'"),
    ("meet: 2}", "spoil: odd}", "26:32", "wrong"),
    ("cuMemAlloc_v2, meet: 2}", "cuCtxGetDevice, spoil: torn}", "26:33", "outputs can be spoilt of cuDeviceGetCount, "),
    ("meet: 2}", "from: 1, meet: 2, process: idle}", "26:40", "only 1 callers"),
    ("every: 3", "every: 0", "27:31", "at least 1"),
    ("CUDA_ERROR_UNKNOWN", "CUDA_ERROR_UNKOWN", "27:42", "did you mean 'CUDA_ERROR_UNKNOWN'"),
    ("racer.1", "racer.2", "27:71", "no process 'racer.2'"),
    ("outcome: {step: x, ok", "outcome: {step: z, ok", "29:21", "no step 'z'"),
    ("ok: 1,", "okay: 1,", "29:24", "unknown result 'okay'"),
    ("view: {step: v, total", "view: {step: x, total", "31:18", "is alloc, not a view"),
    ("code: 7, count", "code: 7, signal: SIGKILL, count", "32:11", "either code or signal"),
    ("ledger_empty\n", "ledger_empty: {at: start}\n", "33:24", "must be 'end'"),
    ("ledger_empty\n", "ledger_full: {}\n", "33:5", "unknown key 'ledger_full'"),
    ("ledger_empty\n", "calls: {name: cuInit, count: 1}\n", "33:12", "history: calls"),
    ("ledger_empty\n", "faults_fired: {fault: 2, count: 1}\n", "33:27", "no fault 2"),
    ("ledger_empty\n", "values: {step: x, wrong: 0}\n", "33:23", "has no value 'wrong'"),
    ("ledger_empty\n", "order: {phases: [real_entr]}\n", "33:22", "did you mean 'real_enter'"),
    ("free: x", "call: {name: cuMemFree_v3, with: [x]}", "14:26", "unknown driver function"),
    ("free: x", "call: {name: cuMemFree_v2, with: [y]}", "14:47", "'y' is what no step before it got"),
    ("free: x", "call: {name: cuMemFree_v2, with: [x, 1]}", "14:46", "takes 1 arguments, not 2"),
    ("free: x", "call: {name: cuMemFree_v2, with: [{value: x}]}", "14:47", "no buffer by value"),
    ("free: x", "call: {name: cuIpcOpenMemHandle_v2, with: [{out: p}, x, 0]}", "14:66", "{value: NAME}"),
    ("free: x", "call: {name: cuMemFree_v2, with: [{struct: {8: 1}, size: 8}]}", "14:47", "no offset within 8 bytes"),
    ("free: x", "call: {name: cuMemFree_v2, with: [{outt: a}]}", "14:47", "an argument is"),
    ("free: x", "give: y", "14:19", "'y' is what no step before it got"),
    ("free: x", "repeat: {count: 0, steps: [sync]}", "14:29", "at least 1"),
    ("name: race\n", "name: race\nplanted: [{fails: view}]\n", "2:11", "a planted fault is either"),
    ("name: race\n", "", "1:1", "missing key 'name'"),
    ("name: race\n", "name: race\nname: b\n", "2:1", "appears twice"),
    ("name: race\n", "name: race\ntimeout: 10\n", "2:10", "needs a unit"),
    ("name: race\n", "name: race\nsweep: {a: [1, 2]}\n", "2:9", "never used"),
]


@pytest.mark.parametrize(("old", "new", "position", "message"), MISTAKES)
def test_each_mistake_is_found_at_its_place(old: str, new: str, position: str, message: str) -> None:
    assert GOOD.count(old) >= 1
    found = problems(GOOD.replace(old, new, 1))
    lines = [line for line in found if message in line]
    assert len(lines) == 1, found
    assert lines[0].startswith(f"f:{position}: ")


def test_five_mistakes_are_five_lines_sorted_by_position() -> None:
    text = GOOD
    for old, new in [
        ("ledger_empty\n", "ledger_empty: {at: start}\n"),
        ("cuMemAlloc_v2", "cuMemAllok_v2"),
        ("free: x", "free: y"),
        ("start: barrier", "start: sometime"),
        ("[a100-80g, t4-16g]", "[a100-80gb, t4-16g]"),
    ]:
        text = text.replace(old, new, 1)
    found = problems(text)
    assert len(found) == 5
    assert [int(line.split(":")[1]) for line in found] == [2, 9, 14, 26, 33]


def test_text_that_is_not_a_scenario() -> None:
    assert "not valid YAML" in problems("a: [1\nb: 2")[0]
    assert "file is empty" in problems("")[0]
    assert "a scenario is a mapping" in problems("- 1")[0]
    assert "contains itself" in " ".join(problems("name: &x\n  a: *x"))


def test_files_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        load(tmp_path / "b.yaml")


def test_a_sweep_makes_every_combination() -> None:
    text = GOOD.replace("as: x}", "as: x, route: [link, dlsym]}").replace('"580"', "$d") + "sweep: {d: [570, 580]}\n"
    found = loads(text, "f")
    assert [scenario.id for scenario in found] == [
        "race[d=570,route=link]",
        "race[d=570,route=dlsym]",
        "race[d=580,route=link]",
        "race[d=580,route=dlsym]",
    ]
    assert [scenario.node.driver for scenario in found] == ["570", "570", "580", "580"]
    assert found[1].containers[0].processes[0].steps[1].arguments["route"] == "dlsym"


def test_a_mistake_in_one_swept_value_stands_at_that_value() -> None:
    (line,) = problems(GOOD.replace("as: x}", "as: x, route: [link, dlsim, dlsym]}"))
    assert line.startswith("f:12:58: ")


def test_an_unknown_sweep_name_and_an_empty_list() -> None:
    assert "not in sweep" in problems(GOOD.replace('"580"', "$d"))[0]
    assert "empty list" in problems(GOOD.replace("as: x}", "as: x, route: []}"))[0]


def test_overrides_win_and_their_mistakes_name_the_option() -> None:
    overrides = Overrides(
        gpu="t4-16g,h100-80g", memory="1GiB", cores=5, seed=9, timeout="3s", memory_mode="double-check"
    )
    (scenario,) = loads(GOOD, "f", overrides=overrides)
    assert scenario.node.gpus == ("t4-16g", "h100-80g")
    assert [container.memory for container in scenario.containers] == [{None: 1 << 30}] * 2
    assert (scenario.seed, scenario.timeout_ns, scenario.options.memory_mode) == (9, 3 * 10**9, "double-check")
    with pytest.raises(ScenarioError) as caught:
        loads(GOOD, "f", overrides=Overrides(memory="1Gib", gpu="x,h100-80g"))
    assert [str(problem).split(":")[0] for problem in caught.value.problems] == ["--gpu", "--memory"]


def _comparable(scenario: Scenario) -> dict[str, object]:
    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "where"}
        return [strip(item) for item in value] if isinstance(value, (list, tuple)) else value

    plain = dataclasses.asdict(scenario)
    for key in ("name", "sweep", "path", "raw"):
        del plain[key]
    return strip(plain)  # type: ignore[return-value]


def test_the_copy_of_a_run_loads_to_the_same_run() -> None:
    for scenario in loads(GOOD.replace("as: x}", "as: x, route: [link, dlsym]}"), "f"):
        (again,) = loads(dump(scenario), "copy")
        assert _comparable(again) == _comparable(scenario)


_TOKENS = st.sampled_from(["x", "racer", "4GiB", "5ms", "$d", "any", "", "init", "-1", "1.5", "null", "true", "cuInit"])
_LEAVES = st.one_of(
    _TOKENS, st.integers(-3, 300), st.none(), st.booleans(), st.floats(allow_nan=True), st.text(max_size=5)
)


def _paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [path, *(found for key, child in children for found in _paths(child, (*path, key)))]


@given(st.data())
def test_no_damage_makes_the_loader_crash(data: st.DataObject) -> None:
    """Any value at any place, several times over: either scenarios or problems with positions inside the text."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(tree)[1:]))
        holder = tree
        for part in path[:-1]:
            holder = holder[part]
        replacement = st.one_of(_LEAVES, st.lists(_LEAVES, max_size=2), st.dictionaries(_TOKENS, _LEAVES, max_size=2))
        holder[path[-1]] = data.draw(replacement)
        if not isinstance(tree, dict):
            break
    stream = io.StringIO()
    yaml.dump(tree, stream)
    text = stream.getvalue()
    found = _problems_or_none(text)
    assert found is None or found
    for problem in found or ():
        assert "\n" not in problem.text
        assert 1 <= problem.line <= text.count("\n") + 1


def _problems_or_none(text: str) -> tuple[Problem, ...] | None:
    try:
        loads(text, "f")
    except ScenarioError as error:
        return error.problems
    return None
