"""Conformance: ours passes every clause, and each planted fault is seen by the clause that is about it.

The daemons with one fault are in `faulty_daemon.py`; modules with one fault are below. `none` is the clean twin.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty_daemon
import pytest
from fork_rig import ForkRig

from lab.bridge import conform_daemon, conform_module
from lab.bridge.findings import INVALID, UNKNOWN, UNSPECIFIED, VALID, Finding, as_junit, exit_code
from lab.bridge.module import GuestMemory, Module, Ticket
from lab.bridge.records import RECORD_BYTES, Done, Job
from lab.bridge.rig import Rig, arguments

CAUGHT_BY = {
    "any_version": "idle.version",
    "any_magic": "idle.magic",
    "pads_short_records": "idle.short",
    "takes_v1": "idle.v1",
    "idle_records_use_up_seq": "idle.version",
    "dies_without_job_file": "idle.absent",
    "runs_a_seq_again": "seq.replay",
    "wants_seq_in_order": "seq.skip",
    "signed_seq": "seq.unsigned",
    "bad_jobs_are_answered_for_ever": "seq.bad",
    "reads_input_first": "limit.blob",
    "no_blob_limit": "limit.blob",
    "limit_is_one_less": "mail.limit",
    "vadd_limit_is_one_less": "vadd.limit",
    "sizes_in_32_bits": "limit.blob",
    "sizes_are_not_compared": "bad.sizes",
    "unknown_opcode_is_ok": "bad.opcode",
    "no_err_code": "bad.opcode",
    "no_answer_to_failures": "bad.opcode",
    "output_on_failure": "bad.opcode",
    "done_is_appended": "out.offset",
    "out_is_appended": "out.offset",
    "input_in_one_read": "vadd.sums",
    "short_input_is_filled_up": "in.short",
    "short_writes_are_not_noticed": "out.partial",
    "dies_of_an_output_error": "out.failure",
    "transport_error_without_errno": "out.failure",
    "sum_in_single_precision": "vadd.sums",
    "mail_has_a_checksum": "mail.bytes",
    "checksum_is_a_float": "vadd.sums",
    "bad_is_never_counted": "launch.grid",
    "bad_is_an_error": "launch.grid",
    "ignores_the_grid": "vadd.sums",
    "default_grid_too_small": "vadd.sums",
    "flushes_denormals": "vadd.values",
    "mail_of_another": "mail.bytes",
    "mail_with_a_nul": "mail.bytes",
    "reads_b_first": "vadd.sums",
    "seq_is_not_echoed": "vadd.sums",
    "done_of_version_1": "mail.bytes",
    "done_in_big_endian": "mail.bytes",
    "rubbish_in_reserved_bytes": "mail.bytes",
    "rubbish_after_the_name": "mail.bytes",
    "no_out_bytes_written": "mail.bytes",
    "times_in_milliseconds": "vadd.sums",
    "done_before_output": "mail.limit",
    "two_lines_a_job": "log.line",
    "no_line": "log.line",
    "line_of_rounded_sums": "log.line",
}
SLOW = {"first_seq_must_be_high": "seq.first", "opens_for_both": "modes"}
"""Seen only by a wait for a start that never comes, and only in a process of its own."""
HERE = Path(__file__).parent


def judge(folder: Path, fault: str, *, only: tuple[str, ...] = (), patience_s: float = 5.0) -> list[Finding]:
    """What conformance finds about a daemon with a fault, as a fork of this process."""
    with ForkRig(
        folder, lambda paths: faulty_daemon.serve(fault, paths), patience_s=patience_s, start_s=2.0, idle_s=0.05
    ) as rig:
        return list(conform_daemon.conform(rig, only=only))


def named(findings: list[Finding], *verdicts: str) -> dict[str, str]:
    return {finding.clause: finding.seen for finding in findings if finding.verdict in verdicts}


def test_every_fault_has_its_clause() -> None:
    assert set(faulty_daemon.FAULTS) == {"none", *CAUGHT_BY, *SLOW}
    assert {*CAUGHT_BY.values(), *SLOW.values()} <= conform_daemon.CLAUSES.keys()


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_a_fault_is_seen(fault: str, tmp_path: Path) -> None:
    found = judge(tmp_path, fault, only=(CAUGHT_BY[fault],), patience_s=1.0)
    assert named(found, INVALID), found


@pytest.mark.full
@pytest.mark.parametrize("clause", sorted(set(CAUGHT_BY.values()) - {"vadd.limit", "mail.limit"}))
def test_the_clean_twin_passes_the_clause(clause: str, tmp_path: Path) -> None:
    assert [finding.verdict for finding in judge(tmp_path, "none", only=(clause,))] == [VALID]


@pytest.mark.full
@pytest.mark.parametrize("fault", [*CAUGHT_BY, *SLOW])
def test_a_fault_is_seen_among_all_clauses(fault: str, tmp_path: Path) -> None:
    command = f"{sys.executable} {HERE / 'faulty_daemon.py'} {fault} {{job}} {{in}} {{out}} {{done}}"
    with Rig(tmp_path, command, patience_s=1.0, start_s=5.0, idle_s=0.1) as rig:
        found = named(list(conform_daemon.conform(rig)), INVALID, UNKNOWN)
    assert {**CAUGHT_BY, **SLOW}[fault] in found, found


def test_writing_only_is_seen_in_a_process_of_its_own(tmp_path: Path) -> None:
    for fault, verdict in (("opens_for_both", INVALID), ("none", VALID)):
        command = f"{sys.executable} {HERE / 'faulty_daemon.py'} {fault} {{job}} {{in}} {{out}} {{done}}"
        folder = tmp_path / fault
        folder.mkdir()
        with Rig(folder, command, patience_s=5.0, start_s=5.0, idle_s=0.1) as rig:
            found = list(conform_daemon.conform(rig, only=("modes",)))
        assert [finding.verdict for finding in found] == [verdict], found


def test_ours_passes_every_clause(hooklab: Callable[..., Any], tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -P -m lab.cli bridge serve --backend cpu --poll-ms 2 "
        "--job {job} --in {in} --out {out} --done {done}"
    )
    junit = tmp_path / "junit.xml"
    done = hooklab("bridge", "conform", "--daemon", command, "--idle", "0.1", "--json", "--junit", junit, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = {row["clause"]: row for row in json.loads(done.stdout)["findings"]}
    assert {name for name, row in findings.items() if row["verdict"] == UNSPECIFIED} == {
        "mail.long", "launch.axes", "launch.partial", "fields.reserved", "fields.mail_input", "n.zero", "bad.nan",
        "stop", "second",
    }  # fmt: skip
    assert not [row for row in findings.values() if row["verdict"] in (INVALID, UNKNOWN)]
    assert findings["stop"]["seen"] == "it is answered with status 0"
    assert findings["second"]["seen"] == "it is refused"
    assert findings["scope.v1"]["verdict"] == "out of scope"
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("0", "10", str(len(findings)))


# -- modules --
def takes_foreign_magic(module: Any) -> None:
    def complete(done: Done) -> None:
        type(module)._complete(module, replace(done, magic=0x32444243))

    module._complete = complete


def takes_any_version(module: Any) -> None:
    def complete(done: Done) -> None:
        type(module)._complete(module, replace(done, version=2))

    module._complete = complete


def any_seq_will_do(module: Any) -> None:
    def complete(done: Done) -> None:
        type(module)._complete(module, replace(done, seq=module.oldest.job.seq) if module.oldest else done)

    module._complete = complete


def needs_no_output(module: Any) -> None:
    def complete(done: Done) -> None:
        ticket = module._pending.get(done.seq)
        if ticket is not None and done.status == 0:
            module._out[:] = bytes(ticket.job.out_bytes)
            done = replace(done, out_bytes_written=ticket.job.out_bytes)
        type(module)._complete(module, done)

    module._complete = complete


def failures_complete(module: Any) -> None:
    def complete(done: Done) -> None:
        ticket = module._pending.get(done.seq)
        if ticket is not None and done.valid and done.status:
            module._out[:] = bytes(ticket.job.out_bytes)
            done = replace(done, status=0, out_bytes_written=ticket.job.out_bytes)
        type(module)._complete(module, done)

    module._complete = complete


def bad_fails(module: Any) -> None:
    def complete(done: Done) -> None:
        type(module)._complete(module, replace(done, status=2) if done.bad else done)

    module._complete = complete


def drops_after_a_read(module: Any) -> None:
    def serve(role: str, size: int, position: int) -> bytes:
        found = type(module).serve(module, role, size, position)
        if role == "job" and found:
            module._pending.pop(module.oldest.job.seq)
        return found

    module.serve = serve


def serves_the_newest(module: Any) -> None:
    class Newest(type(module)):  # type: ignore[misc]
        @property
        def oldest(self) -> Ticket | None:
            return next(reversed(self._pending.values()), None)

    module.__class__ = Newest


def seq_repeats(module: Any) -> None:
    def submit(job: Job, data: bytes = b"", **fields: Any) -> Ticket:
        module._next = 1 if not module._pending else module._next
        return type(module).submit(module, job, data, **fields)

    module.submit = submit


def rubbish_in_the_hole(module: Any) -> None:
    def submit(job: Job, data: bytes = b"", **fields: Any) -> Ticket:
        return type(module).submit(module, job, data, hole=0xDEADBEEF, **fields)

    module.submit = submit


def wrong_parameter_count(module: Any) -> None:
    def submit(job: Job, data: bytes = b"", **fields: Any) -> Ticket:
        return type(module).submit(module, job, data, param_count=4, **fields)

    module.submit = submit


def input_without_an_end(module: Any) -> None:
    def serve(role: str, size: int, position: int) -> bytes:
        return bytes(size) if role == "in" else type(module).serve(module, role, size, position)

    module.serve = serve


def reads_ignore_the_position(module: Any) -> None:
    def serve(role: str, size: int, position: int) -> bytes:
        return type(module).serve(module, role, size, 0 if role == "job" else position)

    module.serve = serve


def output_accumulates_for_ever(module: Any) -> None:
    def take_out(data: bytes, position: int) -> int:
        module._out[position : position + len(data)] = data
        return len(data)

    module._take_out = take_out


def output_in_one_write(module: Any) -> None:
    def take_out(data: bytes, position: int) -> int:
        module._out[:] = data
        return len(data)

    module._take_out = take_out


def done_in_one_write(module: Any) -> None:
    def take_done(data: bytes, position: int) -> int:
        if len(data) == RECORD_BYTES:
            module._complete(Done.unpack(data))
        return len(data)

    module._take_done = take_done


def done_goes_on_whatever_the_offset(module: Any) -> None:
    def take_done(data: bytes, position: int) -> int:
        module._record += data
        while len(module._record) >= RECORD_BYTES:
            record = bytes(module._record[:RECORD_BYTES])
            del module._record[:RECORD_BYTES]
            module._complete(Done.unpack(record))
        return len(data)

    module._take_done = take_done


def everybody_may_read(module: Any) -> None:
    def open_(role: str, *, write: bool = False) -> Any:
        try:
            return type(module).open(module, role, write=write)
        except PermissionError:
            return type(module).open(module, role, write=not write)

    module.open = open_


def no_counters(module: Any) -> None:
    class Silent(type(module)):  # type: ignore[misc]
        status = "vgsp bridge: running\n"

    module.__class__ = Silent


def copies_failed_output(module: Any) -> None:
    def complete(done: Done) -> None:
        ticket = module._pending.get(done.seq)
        if ticket is not None and done.valid and done.status:
            module.memory.write(ticket.destination, b"\xff" * 8)
        type(module)._complete(module, done)

    module._complete = complete


def no_semaphore(module: Any) -> None:
    def submit(job: Job, data: bytes = b"", **fields: Any) -> Ticket:
        ticket = type(module).submit(module, job, data, **fields)
        ticket.job = replace(ticket.job, sem_flags=0)
        return ticket

    module.submit = submit


MODULE_FAULTS: dict[Callable[[Any], None], str] = {
    takes_foreign_magic: "done.foreign",
    takes_any_version: "done.foreign",
    any_seq_will_do: "done.unknown",
    needs_no_output: "out.required",
    failures_complete: "done.failed",
    bad_fails: "done.bad",
    drops_after_a_read: "job.served",
    serves_the_newest: "job.served",
    seq_repeats: "seq.ascends",
    rubbish_in_the_hole: "job.record",
    wrong_parameter_count: "job.record",
    input_without_an_end: "in.bytes",
    reads_ignore_the_position: "read.positions",
    output_accumulates_for_ever: "out.restart",
    output_in_one_write: "out.chunks",
    done_in_one_write: "done.parts",
    done_goes_on_whatever_the_offset: "done.fresh",
    everybody_may_read: "modes",
    no_counters: "status",
    copies_failed_output: "guest.copy",
    no_semaphore: "guest.copy",
}


def judge_module(plant: Callable[[Any], None] | None) -> list[Finding]:
    memory = GuestMemory()
    module = Module(memory=memory)
    if plant is not None:
        plant(module)
    return list(conform_module.conform(conform_module.ModuleTarget(module, memory), patience_s=0.05))


def test_our_module_passes_every_clause() -> None:
    assert {finding.verdict for finding in judge_module(None)} == {VALID}


@pytest.mark.parametrize("plant", MODULE_FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_of_a_module_is_seen(plant: Callable[[Any], None]) -> None:
    assert MODULE_FAULTS[plant] in named(judge_module(plant), INVALID), judge_module(plant)


def test_a_module_over_plain_files(hooklab: Callable[..., Any], tmp_path: Path) -> None:
    """What plain files cannot show is unknown, and the rest is judged."""
    command = (
        f"{sys.executable} -P -m lab.cli bridge submit --count 1000 --n 40 "
        "--job {job} --in {in} --out {out} --done {done} --status {status}"
    )
    done = hooklab("bridge", "conform", "--module", command, "--patience", "10", "--json", timeout=300)
    assert done.returncode == 3, done.stdout + done.stderr
    findings = [Finding(**row) for row in json.loads(done.stdout)["findings"]]
    assert not named(findings, INVALID)
    assert set(named(findings, UNKNOWN)) - {"job.none"} == {
        "modes", "out.restart", "out.chunks", "done.parts", "done.fresh", "guest.copy",
    }  # fmt: skip


def test_a_module_that_never_submits_is_unknown(hooklab: Callable[..., Any]) -> None:
    command = "sleep 60 {job} {in} {out} {done}"
    done = hooklab("bridge", "conform", "--module", command, "--patience", "0.1")
    assert done.returncode == 3
    assert "no job came within 0.1 s" in done.stdout
    assert hooklab("bridge", "conform", "--module", command, "--patience", "0.1", "--allow-unknown").returncode == 0


# -- the command --
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give one of --daemon and --module"),
        (("--daemon", "x", "--module", "builtin"), "give one of --daemon and --module"),
        (("--daemon", "x {job} {in} {out}"), "does not name {done}"),
        (("--daemon", "/no/such/program {job} {in} {out} {done}"), "/no/such/program"),
        (("--module", "builtin", "--clause", "x"), "no clause x; known are job.none"),
    ],
)
def test_usage(hooklab: Callable[..., Any], options: tuple[str, ...], said: str) -> None:
    done = hooklab("bridge", "conform", *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_daemon_that_dies_at_once_is_invalid(hooklab: Callable[..., Any]) -> None:
    done = hooklab("bridge", "conform", "--daemon", "false {job} {in} {out} {done}", "--clause", "idle.absent")
    assert done.returncode == 1
    assert "the daemon has ended (exit status 1)" in done.stdout


def test_commands_are_split_before_paths_are_put_in(tmp_path: Path) -> None:
    paths = {role: tmp_path / f"a b {role}" for role in ("job", "in", "out", "done")}
    assert arguments("x --job={job} '{in} {out}' {done}", paths) == [
        "x",
        f"--job={paths['job']}",
        f"{paths['in']} {paths['out']}",
        str(paths["done"]),
    ]


def test_junit_and_exit_codes() -> None:
    findings = [
        Finding("a", "first", VALID),
        Finding("b", "second", INVALID, "broken \x00"),
        Finding("c", "third", UNSPECIFIED, "so"),
        Finding("d", "fourth", UNKNOWN, "dark"),
    ]
    suite = ET.fromstring(as_junit("x", findings))
    assert [len(case) for case in suite] == [0, 1, 1, 1]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "2")
    assert [exit_code(findings), exit_code(findings[2:]), exit_code(findings[2:3])] == [1, 3, 0]
    assert exit_code(findings[2:], allow_unknown=True) == 0


def test_bench(hooklab: Callable[..., Any]) -> None:
    done = hooklab("bridge", "bench", "--backend", "cpu", "--jobs", "5", "--poll-ms", "0,20", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["schema"], result["evidence"]) == ("hooklab.bridge-bench/1", "fake-driver")
    assert {(row["poll_ms"], row["failed"]) for row in result["rows"]} == {(0, 0), (20, 0)}
    assert all(row["p50_us"] > 0 for row in result["rows"])
