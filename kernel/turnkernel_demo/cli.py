"""The `kernel-demo` command: its group, and how it always ends. Touches signals and the standard streams.

Commands are loaded when they are asked for, so that `list` does not wait for what only `run` needs.
"""

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import cast

import click

from .exits import PROGRAM, note
from .values import known_ones

__all__ = ["cli", "main"]

COMMANDS: Mapping[str, str] = {
    "list": "list_command:list_scenarios",
    "run": "run_command:run",
    "show": "log_commands:show",
    "verify": "log_commands:verify",
    "repair": "repair_command:repair",
    "context": "context_command:context",
    "bench": "bench.commands:bench",
}
"""Where each command is, in the order in which they are shown."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell's children: 128 + SIGINT."""
BROKEN_PIPE = 141
"""Exit code when the reader of our output has gone, likewise."""

EPILOG = """\b
Examples:
  kernel-demo                                        the tour, in about twenty seconds
  kernel-demo list
  kernel-demo run esc-in-a-long-tool --log esc.log   play one, and keep its log
  kernel-demo show esc.log
  kernel-demo verify --closed esc.log
  kernel-demo repair --dry-run crashed.log
  kernel-demo context esc.log --wire anthropic
  kernel-demo COMMAND --help                         more on one, with its exit codes

\b
Exit codes of all commands:
  0  as it should be; an open or torn log is no violation
  1  a law is violated, a log is damaged, or an expectation is not met
  2  something can't be read, or a live kernel holds it: one line on standard error
     names file, place and reason. Also for a command line that makes no sense
"""


class Commands(click.Group):
    """The group. Modules are imported when their command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a hint where the name is nearly right."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{known_ones(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="turnkernel", prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """See what an agent kernel does when it is cut: scenarios, their logs, and the laws that these keep.

    A turn is a nursery; when it is over, nothing of it is left: no task, no process, no open connection, no
    half-written history. Every run leaves a log, and everything below is about such logs.

    Without a command it plays the three classic accidents: Esc in a long tool; kill -9 and restart; and the same
    crash under a recovery that truncates, for contrast. Exit code 0 when each ends as promised.
    """
    if ctx.invoked_subcommand is None:
        from .tour import tour

        sys.exit(tour())


def main() -> None:
    """Run the command line and leave with its exit code. No traceback is printed at a user."""
    _occupy_standard_streams()
    _count_hangup_as_terminate()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
        # Not left to the interpreter, which would complain about a pipe that is gone.
        sys.stdout.flush()
    except OSError as error:
        code = _output_failed(error)
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """The exit code of a command line. Raises OSError where the output can't be written."""
    try:
        # Not `cli.main()`, which would answer a broken pipe with exit code 1: that is the code of a violation.
        with cli.make_context(PROGRAM, list(args)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else PROGRAM
        note(f"{' '.join(error.format_message().split())} (see {where} --help)", where)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            return INTERRUPTED
        broken = group.subgroup(_is_broken_output)
        if broken is None:
            return _internal(group)
        raise OSError(*_first(broken).args) from group
    except Exception as error:
        if _is_broken_output(error):
            raise
        return _internal(error)
    return 0


def _is_broken_output(error: BaseException) -> bool:
    # Files that are read carry their names; the standard streams have none. EIO: a terminal that is gone.
    known = (errno.EPIPE, errno.ENOSPC, errno.EIO)
    return isinstance(error, OSError) and error.filename is None and error.errno in known


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _output_failed(error: OSError) -> int:
    """Standard output can't be written: nobody reads any more, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    note(f"the output can't be written: {error.strerror}")
    return 1


def _internal(error: BaseException) -> int:
    if os.environ.get("TURNKERNEL_DEBUG") == "1":
        traceback.print_exception(error)
    note(f"internal error: {type(error).__name__}: {error}; run with TURNKERNEL_DEBUG=1 for the traceback")
    return 1


def _occupy_standard_streams() -> None:
    """Put nothing where a standard stream was closed (`2>&-`): else the next file or socket gets its number, and
    whoever writes to the stream, a process that we start too, writes into that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def _count_hangup_as_terminate() -> None:
    """SIGHUP does what SIGTERM does, in every command. Left alone where it is ignored (nohup)."""

    def hang_up(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)
