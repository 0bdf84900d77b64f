"""How long each way to a host PID takes, in one run, beside the article's figures.

``python tests/identity/timings.py``: 500 questions to the broker one after another, 300 at once, the fallback where no
broker is, and the experiment in guests on the fake GPU. Nothing is judged here: figures of a loaded machine are figures
of a loaded machine. Evidence: real processes and sockets, fake driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab import native
from lab.checks import history
from lab.codegen import emit
from lab.codegen._write import write_files
from lab.identity.paths import paths
from lab.node.server import NodeServer
from lab.runner.recorder import Recorder

ROOT = Path(__file__).parents[2]
IDENTITY = ROOT / "shim" / "identity"
GUEST = ROOT / "tests" / "native" / "shim" / "cuda_guest.py"
CLI = [sys.executable, "-P", "-c", "import sys; from lab.cli import main; sys.exit(main())"]
ARTICLE = {"series": "183 and 206 (two runs)", "missing": "9 (ENOENT)"}


def rank(values: Sequence[int], percent: int) -> float:
    """Nearest rank, in microseconds."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / 1000


def row(what: str, values: Sequence[int], failed: int, article: str = "-") -> str:
    figures = " ".join(f"{rank(values, percent):9.1f}" for percent in (50, 95, 99, 100)) if values else "-"
    return f"{what:44} {len(values):5} {failed:6} {figures}   {article}"


def compiled(folder: Path, directory: Path) -> Path:
    """The C client for a broker in `directory`."""
    write_files(folder / "gen", emit.emit())
    program = folder / "ask"
    sources = [ROOT / "tests/native/identity/ask.c", IDENTITY / "broker.c", IDENTITY / "procfs.c"]
    flags = ["-std=gnu11", "-O2", f"-I{folder / 'gen'}", f"-I{IDENTITY}", "-DHL_BROKER_OWNER=geteuid()"]
    subprocess.run(
        ["cc", *flags, f'-DHL_BROKER_DIRECTORY="{directory}"', *map(str, sources), "-o", str(program)], check=True
    )
    return program


def asked(program: Path, *words: str, crowd: bool = False) -> tuple[list[int], int]:
    """(ns of the answered, how many were not)."""
    done = subprocess.run(
        [program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=120
    )
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines() if line != "end"]
    rows = [line[1:] for line in rows] if crowd else rows
    return [ns for _reason, told, ns in rows if told], sum(not told for _reason, told, _ns in rows)


def experiments(folder: Path, count: int) -> tuple[list[int], int]:
    """Guests that learn their PID by the experiment, `count` at once on one GPU."""
    recorder = Recorder(folder / "history", capacity=100_000)
    with NodeServer(gpus=["a100-80g"], containers=["a"], latencies="profile") as node:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HOOKLAB_", "CUDA_"))}
        environment |= {
            **node.environment,
            "LD_LIBRARY_PATH": str(native.directory() / "fake"),
            "LD_PRELOAD": str(native.path("libhooklab-preload.so")),
            "HOOKLAB_HISTORY": str(folder / "history"),
            "HOOKLAB_HOST_PID": "1",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / f"region-{count}"),
        }
        guest = [sys.executable, "-I", "-S", str(GUEST), "init(); retain(); sys.stdin.read()"]
        made = [subprocess.Popen(guest, env=environment, stdin=subprocess.PIPE) for _ in range(count)]
        for one in made:
            one.communicate(timeout=120)
    found = paths(history.load(folder / "history").records)
    recorder.close()
    return found.durations_ns.get("probe", []), found.unknown


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory(prefix="hl-id-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = compiled(folder, folder / "hostpid")
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; microseconds")
        print(f"{'way':44} {'n':>5} {'failed':>6} {'p50':>9} {'p95':>9} {'p99':>9} {'max':>9}   article, p99")
        done = subprocess.run([program, "series", "500"], capture_output=True, text=True, check=True)
        missing = [int(line.split()[2]) for line in done.stdout.splitlines()]
        print(row("no broker there: the next tier is asked", missing, 0, ARTICLE["missing"]))
        broker = subprocess.Popen(
            [*CLI, "broker", "serve", "--any-namespace", "--socket", str(folder / "hostpid" / "broker.sock")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            broker.stdout.readline()
            asked(program, "series", "50")
            print(row("broker, 500 one after another", *asked(program, "series", "500"), ARTICLE["series"]))
            print(row("broker, 300 at once", *asked(program, "crowd", "300", crowd=True)))
        finally:
            broker.terminate()
            broker.communicate()
        print(row("host procfs, 300 at once", *asked(program, "crowd", "300", "/proc", crowd=True)))
        print(row("experiment, 1 (modelled a100-80g)", *experiments(folder, 1)))
        for count in (8, 32):
            (folder / "history").unlink()
            print(row(f"experiment, {count} at once", *experiments(folder, count)))


if __name__ == "__main__":
    main()
