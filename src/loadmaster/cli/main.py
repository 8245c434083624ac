"""`loadmaster COMMAND`: finds the command, runs it, prints its answer, sets the exit code.

A command is one file with a function `command` that returns an `Answer` (or another one that is
named), and one line in `COMMANDS`. Its file is imported only when it is used, and it imports NumPy and all else inside
its function, so that help is shown at once.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the answer is no: it does not fit, the plan is not sound |
| 2 | wrong usage or bad input |
| 3 | an optional package is missing |
| 4 | no answer within the limit, and none proven |
| 70 | a bug; the traceback is in a file |
| 129, 130, 143 | ended by SIGHUP, Ctrl-C, SIGTERM; what was found is kept |
| 141 | nobody reads the output any more |
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from loadmaster import __version__, signals
from loadmaster.cli.answer import Answer, Usage, json_text, one_line, printable, put, show
from loadmaster.cli.progress import be_quiet, clear, say
from loadmaster.errors import LoadmasterError, nearest

COMMANDS = {
    "demo": ("demo", "three scenes in two minutes, and a page of them"),
    "models": ("models", "list the workloads, or describe one"),
    "machines": ("machines", "list the machines, or describe one with the source of its numbers"),
    "import": ("import_", "turn a model of another framework into a program file"),
    "inspect": ("inspect", "what a model needs: bytes, flops, peak, bounds of time"),
    "simulate": ("simulate", "time a model on a machine, with a plan or without"),
    "check": ("simulate:judge", "is a plan sound? name every violation"),
    "solvers": ("solvers", "list the solvers of every kind of problem, or describe one"),
    "runs": ("runs", "list the runs of a folder"),
    "watch": ("watch", "a local page that follows running searches"),
    "bank": ("bank", "list the answers of a bank of plans"),
    "compare": ("compare", "two runs or plans side by side, and what changed"),
    "replay": ("replay", "check and score every plan of a run again"),
    "validate": ("replay", "the same as replay"),
    "fits": ("fits", "does a .tflite model fit a microcontroller, and what would help?"),
    "plan": ("plan", "decide memories, offsets, devices, order; does it fit?"),
    "resume": ("plan:resume", "go on with a run that was interrupted, or give it more"),
    "calibrate": ("calibrate", "measure a machine, and a model's ops on it"),
    "export": ("export", "write a model so that a runtime follows a plan"),
    "run": ("run", "run a PyTorch model on a device as a plan says"),
    "train": ("train", "train an agent's policy, to start from elsewhere"),
    "transfer": ("train:transfer", "what a trained policy decides for other models"),
    "report": ("report", "one offline HTML file about runs or plans"),
    "figures": ("figures", "pictures of mapping runs: learning curves, maps, room"),
    "allocate": ("allocate", "offsets for buffers: fit a capacity, or the least one"),
    "bench": ("bench", "run a suite of measurements"),
}
"""Command -> (its module in this folder, one line of help)."""

EVERYWHERE = "Every command takes --json (one JSON object on standard output) and --quiet."
INTERRUPTED = 130
BUG = 70
NO_READER = 141

# Click's base error, wherever this version of Typer keeps it.
_USAGE_ERRORS: type[BaseException] = typer.BadParameter.__mro__[2]


class Panels(TyperCommand):
    """A command whose options are shown in panels, by purpose (`rich_help_panel`), in the order of the first of
    each; what has no panel comes first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            named = getattr(param, "rich_help_panel", None) or "Options"
            if record is not None:
                panels.setdefault("Arguments" if param.param_type_name == "argument" else named, []).append(
                    record
                )
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Commands(TyperGroup):
    """The group of all commands. A command's module is imported when the command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if cmd_name.startswith("-"):
                return None  # Typer names the unknown option
            raise Usage(
                f"there is no command '{cmd_name}'{nearest(cmd_name, tuple(COMMANDS))}",
                object=cmd_name,
                remedy="see 'loadmaster --help'",
            )
        name, _, function = COMMANDS[cmd_name][0].partition(":")
        module = importlib.import_module(f"loadmaster.cli.{name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=Panels, epilog=EVERYWHERE)(getattr(module, function or "command"))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # From the table alone: listing the commands imports none of them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        given, as_json = _without(given, "--json")
        given, quiet = _without(given, "--quiet")
        be_quiet(quiet)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            code = self._run(given or ["--help"], as_json, quiet)
            sys.stdout.flush()
        except BrokenPipeError:
            code = _no_reader()
        except OSError:
            if not signals.heard():
                raise
            code = signals.exit_code()  # the terminal is gone, as SIGHUP says
        sys.exit(code)

    def _run(self, args: list[str], as_json: bool, quiet: bool) -> int:
        stdout = sys.stdout
        # With --json, whatever a library prints goes to standard error.
        aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
        try:
            with aside:
                result = super().main(args=args, prog_name="loadmaster", standalone_mode=False, obj=as_json)
            if isinstance(result, int):  # help and version have printed already; or interrupted
                if result != INTERRUPTED:
                    return result
                raise KeyboardInterrupt
            answer = result if isinstance(result, Answer) else Answer()
            code = signals.exit_code() if answer.exit == INTERRUPTED else answer.exit
            return _print(args, answer, code, as_json, quiet, stdout)
        except BrokenPipeError:
            raise
        except LoadmasterError as error:
            code = signals.exit_code() if error.exit_code == INTERRUPTED else error.exit_code
            failure = error
        except _USAGE_ERRORS as usage:
            code, failure = 2, _usage_failure(usage)
        except OSError as error:
            code, failure = 2, _system_failure(error)
        except MemoryError as error:
            code, failure = 2, _memory_failure(_name(args), error)
        except (KeyboardInterrupt, typer.Abort):
            code, failure = signals.exit_code(), LoadmasterError("interrupted", object=_name(args))
        except Exception as error:
            code, failure = BUG, _bug_failure(error)
        clear()
        put(f"error: {one_line(failure.message)}", sys.stderr)
        if as_json:
            put(json_text(_name(args), Answer(error=failure), code), stdout)
        return code


def _print(args: list[str], answer: Answer, code: int, as_json: bool, quiet: bool, stdout: IO[str]) -> int:
    clear()
    if as_json:
        put(json_text(_name(args), answer, code), stdout)
        return code
    if not quiet:
        for warning in answer.warnings:
            put(f"warning: {one_line(warning)}", sys.stderr)
    show(answer.blocks, stdout)
    if answer.error is not None and not answer.error_in_blocks:
        put(printable(answer.error.message), stdout)
    return code


def _usage_failure(error: Any) -> Usage:
    """What Typer found wrong, in one line with the way to the help."""
    message = one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "loadmaster"
    return Usage(message, object=where, remedy=f"see '{where} --help'")


def _system_failure(error: OSError) -> LoadmasterError:
    """A closed folder, a full disk, a name that is too long: no bug of ours."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    what = f"'{name}': " if name else ""
    return LoadmasterError(f"{what}{error.strerror or error}", object=name, number=error.errno)


def _memory_failure(command: str, error: MemoryError) -> LoadmasterError:
    """More than this computer has: a number or a model that is too large for it."""
    what = f" ({error})" if str(error) else ""
    remedy = "give a smaller model, or smaller numbers with --set"
    return LoadmasterError(
        f"'{command}' needs more memory than there is here{what}", object=command, remedy=remedy
    )


def _bug_failure(error: Exception) -> LoadmasterError:
    """Our fault: the traceback goes to a file, and its name to the user."""
    import tempfile
    import traceback

    lines = [f"loadmaster {__version__}, Python {sys.version}\n"]
    lines += traceback.format_exception(error)
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="loadmaster-",
            suffix=".log",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.writelines(lines)
        remedy = f"please report it with the file {file.name}"
    except OSError:  # no room for it either
        remedy = "please report it"
    return LoadmasterError(
        f"this is a bug in loadmaster ({type(error).__name__}): {error}",
        object=type(error).__name__,
        remedy=remedy,
    )


def _without(args: list[str], option: str) -> tuple[list[str], bool]:
    """The arguments without an option that every command has, and whether it was there."""
    end = args.index("--") if "--" in args else len(args)
    kept = [arg for arg in args[:end] if arg != option] + args[end:]
    return kept, len(kept) != len(args)


def _name(args: list[str]) -> str:
    return next((arg for arg in args if arg in COMMANDS), "")


def _no_reader() -> int:
    # The interpreter flushes once more at exit; there it must find an open pipe.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NO_READER


def _stopping(run: bool) -> None:
    """A signal was heard, whatever the main thread is doing."""
    say("stopping: the best so far is kept; once more ends it at once" if run else "stopping")


def _farewell(run: Path | None) -> None:
    """In place of the main thread, which is in the middle of something long."""
    from loadmaster.runs.folder import resume_line

    kept = "" if run is None else f": what was found is kept, go on with {resume_line(run)}"
    failure = LoadmasterError(f"interrupted{kept}", object=_name(sys.argv[1:]))
    put(f"error: {one_line(failure.message)}", sys.stderr)
    if "--json" in sys.argv:
        text = json_text(_name(sys.argv[1:]), Answer(error=failure), signals.exit_code())
        put(text, sys.__stdout__ or sys.stdout)


def _version(given: bool) -> None:
    if given:
        put(f"loadmaster {__version__}", sys.stdout)
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=f"{EVERYWHERE} Example: loadmaster simulate resnet50 --machine nnp-i",
)


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Loadmaster decides which memory every tensor of an ML model lives in, when it moves, which
    device runs what and in which order, and proves how good the answer is."""


def main() -> NoReturn:
    """The program `loadmaster`."""
    with signals.watching(signals.Watcher(_stopping, _farewell)):
        app()
    raise AssertionError("unreachable: the group exits by itself")


if __name__ == "__main__":
    main()
