"""The `treadle` command: the table of subcommands, and how every error ends."""

from __future__ import annotations

import os
import sys
import time
import traceback

import click

from treadle.__main__ import INTERRUPTED
from treadle.cli.lazy import COMPLETION, LazyGroup
from treadle.cli.limit import BEGAN
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError, TreadleError, brief
from treadle.planner.version import __version__

SUBCOMMANDS = {
    "trace": ("treadle.cli.trace", "Capture, import or show the trace of a model's step."),
    "profile": ("treadle.cli.profile", "List, show, measure or import hardware profiles."),
    "sketch": ("treadle.cli.sketch", "Propose, show or list communication sketches."),
    "plan": ("treadle.cli.plan", "Plan what one pass decides, or a whole job."),
    "generate": ("treadle.cli.generate", "Write PyTorch, MSCCL XML, MSCCL++, CUDA or NCCL tuner files."),
    "run": ("treadle.cli.run", "Execute a folder of artefacts."),
    "check": ("treadle.cli.check", "Check plans and artefacts, also other people's MSCCL XML."),
    "simulate": ("treadle.cli.simulate", "Predict the time of plans and of MSCCL XML."),
    "report": ("treadle.cli.report", "Write plans as one self-contained HTML page."),
}

INTERNAL_ERROR = 70
EXTRAS = {"torch": "torch", "google": "traces", "matplotlib": "report", "gurobipy": "gurobi"}
"""Top-level module -> the extra of this package that installs it."""


@click.group(cls=LazyGroup, table=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="treadle")
def cli() -> None:
    """Plan a deep-learning step ahead of time, prove the plan, and make it run.

    Exit codes: 0 good, 1 a check failed, 2 bad input, 3 proved infeasible, 4 no plan within the limits, 5 a backend is
    missing. TREADLE_DEBUG=1 shows tracebacks.
    """


def main(began: float | None = None) -> None:
    """Entry point; ends the process with the exit code that the error asks for. `began`: when the process did."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:  # a terminal that cannot show a character gets another one
            stream.reconfigure(errors="replace")
    if instruction := os.environ.get(COMPLETION):
        from treadle.cli.completion import answer

        sys.exit(answer(cli, instruction))
    sys.exit(run(sys.argv[1:], began))


def run(arguments: list[str], began: float | None = None) -> int:
    """Run one command line and return its exit code (docs/exit-codes.md); errors are one line on stderr. Time limits
    count from `began` on time.monotonic's clock, from now where that is absent."""
    began = time.monotonic() if began is None else began
    try:
        with cli.make_context("treadle", list(arguments)) as context:
            context.meta[BEGAN] = began
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        context_of = getattr(error, "ctx", None)
        hint = f" (see `{context_of.command_path} --help`)" if context_of else ""
        return _fail(error.format_message().rstrip(".") + hint, 2)
    except TreadleError as error:
        if isinstance(error, CheckFailed):
            for finding in error.findings:
                click.echo(finding, err=True)
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich ends the process in its own way
            return 0
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{place}{error.strerror or error}", InputError.exit_code)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(str(error.name).partition(".")[0])):
            install = f"install it: pip install 'treadle[{extra}]'"
            return _fail(f"this needs {error.name}, which is not installed; {install}", MissingBackendError.exit_code)
        name = type(error).__name__
        return _fail(f"internal error: {name}: {error}; run again with TREADLE_DEBUG=1 and report it", INTERNAL_ERROR)


def _fail(message: str, code: int) -> int:
    if os.environ.get("TREADLE_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    click.echo(f"error: {brief(' '.join(message.split()))}", err=True)
    return code
