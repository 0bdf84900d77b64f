"""The command line: a group whose commands are one file each, imported only when used.

Invariants: whatever goes wrong is one line on standard error and an exit code (0 valid, 1 invalid, 2 usage, 3 unknown,
130 interrupted); standard output carries results only. Nothing heavy is imported before a command asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence

import click

import lab

USAGE, INTERRUPTED = 2, 130

COMMANDS = {  # name -> help; the module is lab.cli.NAME and so is the attribute (see ATTRIBUTES)
    "run": "Run scenarios, or replay a run directory.",
    "exec": "Run any program on a fake GPU under an interposer.",
    "node": "Show the fake node.",
    "region": "Show or check the shared region of a container.",
    "broker": "Serve the host PID broker, or test any broker.",
    "bridge": "Run kernels of a GPU-free guest on a GPU, or test who does.",
    "hooks": "Examine the lookup routes of an interposer.",
    "bench": "Measure what an interposer adds to each driver call.",
    "burst": "Start many processes at once and show where their time goes.",
    "pacing": "Grade controllers of compute time against each other.",
    "report": "Read a run again, or compare two.",
    "doctor": "Check this installation, this machine, or a running process.",
}
ATTRIBUTES = {"exec": "exec_"}  # names that Python would shadow


class LazyGroup(click.Group):
    """Imports a command's module when the command is called; the list of commands needs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Commands in the order of use, those whose module is installed."""
        return [name for name in COMMANDS if importlib.util.find_spec(f"lab.cli.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None for an unknown name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"lab.cli.{cmd_name}")
        command = getattr(module, ATTRIBUTES.get(cmd_name, cmd_name), None) or getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list with its fixed help texts, so that --help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lab.__version__, prog_name="hooklab")
def cli() -> None:
    """Run interposers on a fake GPU and judge whether they keep their promises.

    Exit codes: 0 valid, 1 invalid, 2 usage, 3 unknown, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code. $HOOKLAB_TRACEBACK=1 shows where an error came from."""
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments), prog_name="hooklab", standalone_mode=False
        )
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except click.UsageError as error:
        command = f"{error.ctx.command_path} --help" if error.ctx is not None else "hooklab --help"
        return _complain(f"{error.format_message()} (see `{command}`)", USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), USAGE)
    except (click.Abort, KeyboardInterrupt) as stop:
        kept = str(stop.__cause__ or stop)  # click hides Ctrl-C in an Abort; a run says which directory it keeps
        return _complain(f"interrupted; kept: {kept}" if kept else "interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would complain again
        return 1
    except Exception as error:
        if os.environ.get("HOOKLAB_TRACEBACK"):
            traceback.print_exc()
        if type(error).__module__.startswith("lab.") or isinstance(error, OSError):
            return _complain(str(error), USAGE)
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        return _complain(
            f"this is a fault in hooklab: {type(error).__name__} at {place}: {error}; "
            "HOOKLAB_TRACEBACK=1 shows where it came from",
            USAGE,
        )


def _complain(text: str, code: int) -> int:
    """Errors with several problems keep one line each; every other is one line."""
    for line in text.splitlines() or ["failed without a word"]:
        print(f"hooklab: {line}" if not _has_position(line) else line, file=sys.stderr)
    return code


def _has_position(line: str) -> bool:
    parts = line.split(":", 3)
    return len(parts) > 3 and parts[1].isdigit() and parts[2].isdigit()
