"""How much a command prints on stderr: `-q` and `-v`, which every command takes, before or after its subcommand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

if TYPE_CHECKING:
    import logging

QUIET, NORMAL, VERBOSE = -1, 0, 1


class Verbosity:
    """That of one command line, which began at `began` on time.monotonic's clock. `logging` is imported only where an
    option asks for it."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.level = NORMAL
        self._logger: tuple[int, bool] | None = None
        self._handler: logging.Handler | None = None

    def choose(self, level: int, context: Any) -> None:
        """Raises BadParameter for another level than the one chosen before."""
        if self.level not in (NORMAL, level):
            raise typer.BadParameter("--quiet and --verbose exclude each other", ctx=context)
        if self.level == level:
            return
        import logging

        self.level = level
        logger = logging.getLogger("treadle")
        self._logger = logger.level, logger.propagate
        logger.setLevel(logging.ERROR if level == QUIET else logging.INFO)
        if level == VERBOSE:
            self._handler = _lines(self.began)
            logger.addHandler(self._handler)
            logger.propagate = False

    def restore(self) -> None:
        """Leave the logger "treadle" as it was before."""
        if self._logger is not None:
            import logging

            logger = logging.getLogger("treadle")
            level, logger.propagate = self._logger
            logger.setLevel(level)
            if self._handler is not None:
                logger.removeHandler(self._handler)


_current: ContextVar[Verbosity | None] = ContextVar("verbosity", default=None)


def is_quiet() -> bool:
    """Whether the command that runs prints no notes and no progress."""
    current = _current.get()
    return current is not None and current.level == QUIET


@contextmanager
def verbosity(began: float) -> Iterator[None]:
    """The command line that runs inside begins without `-q` and `-v`; afterwards the logger is as it was before."""
    current = Verbosity(began)
    token = _current.set(current)
    try:
        yield
    finally:
        current.restore()
        _current.reset(token)


def with_verbosity(command: Any) -> Any:
    """`command` and its subcommands, with the two options."""
    command.params.extend(_options())
    for each in getattr(command, "commands", {}).values():
        with_verbosity(each)
    return command


def _option(level: int, *names: str, help: str) -> Any:
    def callback(context: typer.Context, value: bool) -> None:
        current = _current.get()
        if value and current is not None:
            current.choose(level, context)

    return typer.Option(*names, callback=callback, expose_value=False, is_eager=True, help=help)


def _both(
    quiet: Annotated[bool, _option(QUIET, "-q", "--quiet", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, _option(VERBOSE, "-v", "--verbose", help="Log what is read and done, and when.")] = False,
) -> None:
    """Its parameters are the two options."""


@cache
def _options() -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_both)
    return list(get_command(app).params)


def _lines(began: float) -> logging.Handler:
    import logging

    from treadle.cli.output import print_line

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_line(f"[{time.monotonic() - began:7.2f} s] {record.getMessage()}")

    return Lines()
