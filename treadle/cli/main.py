"""The `treadle` command: the table of subcommands, and how every error ends."""

from __future__ import annotations

import atexit
import os
import re
import sys
import time
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.main import get_command

from treadle.__main__ import INTERRUPTED
from treadle.cli.json_output import one_document, print_error
from treadle.cli.lazy import LazyGroup, new_app
from treadle.cli.limit import since
from treadle.cli.streams import open_streams
from treadle.cli.verbosity import verbosity, with_verbosity
from treadle.planner.documents.nearest import question, unknown
from treadle.planner.errors import CheckFailed, InputError, LimitError, MissingBackendError, TreadleError, brief
from treadle.planner.version import __version__

SUBCOMMANDS = {
    "trace": ("treadle.cli.trace", "Capture, import or show the trace of a model's step."),
    "profile": ("treadle.cli.profile", "List, show, measure, import or summarize profiles of hardware and gradients."),
    "sketch": ("treadle.cli.sketch", "List, propose or show communication sketches."),
    "plan": ("treadle.cli.plan", "Plan what one pass decides, or a whole job."),
    "generate": ("treadle.cli.generate", "Write PyTorch, MSCCL XML, MSCCL++, CUDA or NCCL tuner files."),
    "run": ("treadle.cli.run", "Execute a folder of artefacts."),
    "serve": ("treadle.cli.serve", "Serve the parameters of jobs to their workers, as plans of the server pass say."),
    "checkpoint": ("treadle.cli.checkpoint", "Keep or show checkpoints in the memory of hosts."),
    "check": ("treadle.cli.check", "Check plans and artefacts, also other people's MSCCL XML."),
    "diff": ("treadle.cli.diff", "Print how two plans differ, in words or JSON."),
    "simulate": ("treadle.cli.simulate", "Predict the time of plans and of MSCCL XML."),
    "report": ("treadle.cli.report", "Write plans as one self-contained HTML page."),
    "lab": ("treadle.cli.lab", "Start, use or end the hosts of a hardware profile on this machine."),
    "examples": ("treadle.cli.examples", "Copy the examples of the documentation into a folder."),
}

INTERNAL_ERROR = 70
EXTRAS = {"torch": "torch", "google": "traces", "matplotlib": "report", "gurobipy": "gurobi", "pyroute2": "lab"}
"""Top-level module -> the extra of this package that installs it."""


NOT_ONE_OF = re.compile(r"(Invalid value for .+?: )'(.*)' is not one of ('.*')", re.DOTALL)
"""What typer says about a value that a `Literal` lacks."""
COMPLETION = "_TREADLE_COMPLETE"
"""Set by a shell that completes a command line."""


class Root(LazyGroup):
    table = SUBCOMMANDS


app = new_app(Root, add_completion=True, context_settings={"help_option_names": ["-h", "--help"]})


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"treadle, version {__version__}")
        raise typer.Exit


@app.callback()
def treadle(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plan a deep-learning step ahead of time, prove the plan, and make it run.

    Exit codes: 0 good, 1 a check failed, 2 bad input, 3 proved infeasible, 4 no plan within the limits, 5 a backend is
    missing. TREADLE_DEBUG=1 shows tracebacks.
    """


cli: Any = with_verbosity(get_command(app))


def main(began: float | None = None) -> None:
    """Entry point; ends the process with the exit code that the error asks for. `began`: when the process did."""
    open_streams()
    if os.environ.get(COMPLETION):
        os.environ["COLUMNS"] = "9999"  # help texts are wrapped there, and fish takes every line for a name
        cli.main(prog_name="treadle")
    code = run(sys.argv[1:], began)
    if "torch.distributed" in sys.modules and os.environ.get("WORLD_SIZE"):
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End one of several ranks without destroying what the interpreter still holds: threads of a group of processes
    have aborted that, and who started the ranks ends all of them when one is aborted."""
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # closed, or the reader is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str], began: float | None = None) -> int:
    """Run one command line and return its exit code (docs/exit-codes.md); errors are one line on stderr. Time limits
    count from `began` on time.monotonic's clock, from now where that is absent."""
    with one_document(arguments):
        return _run(arguments, time.monotonic() if began is None else began)


def _run(arguments: list[str], began: float) -> int:
    try:
        with since(began), verbosity(began), cli.make_context("treadle", list(arguments)) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        return _fail(_usage(error), 2, error)
    except TreadleError as error:
        return _fail(str(error), error.exit_code, error)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail("interrupted", INTERRUPTED, error)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{place}{error.strerror or error}", InputError.exit_code, error)
    except MemoryError as error:
        return _fail(f"found too little memory: {error}".rstrip(": "), LimitError.exit_code, error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(str(error.name).partition(".")[0])):
            install = f"install it: pip install 'treadle[{extra}]'"
            lacking = f"this needs {error.name}, which is not installed; {install}"
            return _fail(lacking, MissingBackendError.exit_code, error)
        name = type(error).__name__
        reason = f"internal error: {name}: {error}; run again with TREADLE_DEBUG=1 and report it"
        return _fail(reason, INTERNAL_ERROR, error)


def _usage(error: typer.TyperException) -> str:
    """What is wrong with a command line, and whose help says more."""
    message = error.format_message().replace(": Value error, ", ": ", 1).rstrip(".")
    if literal := NOT_ONE_OF.fullmatch(message):
        message = literal[1] + unknown(literal[2], re.findall(r"'([^']*)'", literal[3]))
    option = getattr(error, "option_name", None)
    if option and getattr(error, "possibilities", None):  # typer lists names that differ much
        near = question(option, error.possibilities)  # type: ignore[attr-defined]
        message = error.message + (f"; {near}" if near else "")
    context = getattr(error, "ctx", None)
    return message + (f" (see `{context.command_path} --help`)" if context else "")


def _fail(message: str, code: int, error: BaseException) -> int:
    """Print `error` on stderr, its findings first, and as JSON where that was asked for."""
    from treadle.cli.output import note_error, print_line

    if os.environ.get("TREADLE_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    line = brief(" ".join(message.split()))
    if isinstance(error, CheckFailed):
        for finding in error.findings:
            print_line(finding)
    print_error(line, code, error)
    note_error(line)
    return code
