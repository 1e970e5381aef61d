"""A file of a user's program as a problem of tiling."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.array.capture import capture
from treadle.planner.errors import InputError, TreadleError
from treadle.planner.passes.tiling.problem import TilingProblem

_DEFAULT = "program"


def problem_of_program(path: Path, function: str | None = None, *, values: Path | None = None) -> TilingProblem:
    """The problem of `function` (of `program`, or of the only one that the file defines), called without arguments.

    The file is imported under its own name, so that plans can name the functions that it gives to operators. Runs the
    program's code; what it prints goes to stderr. Raises InputError with the line of the program for whatever ends it.
    """
    try:
        with chdir("."), redirect_stdout(sys.stderr):
            found = _function(_imported(path), function, path)
            return capture(found, name=path.stem if function is None else function, values=values)
    except (TreadleError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the program may call sys.exit
        raise InputError(_line_of(error), where=_place_of(error, path)) from error


def _imported(path: Path) -> ModuleType:
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise InputError("is no Python file with the name of a module", where=str(path))
    if not path.is_file():
        raise InputError("does not exist", where=str(path))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    module = importlib.import_module(path.stem)
    if Path(str(module.__file__)).resolve() != path.resolve():
        raise InputError(f"has the name of another module, {path.stem}; rename the file", where=str(path))
    return module


def _function(module: ModuleType, name: str | None, path: Path) -> Callable[..., Any]:
    own = {
        word: each
        for word, each in vars(module).items()
        if callable(each) and not word.startswith("_") and getattr(each, "__module__", None) == module.__name__
    }
    name = name or (_DEFAULT if _DEFAULT in own else next(iter(own)) if len(own) == 1 else None)
    if name is None or name not in own:
        known = f"it has {', '.join(own)}" if own else "it has none"
        raise InputError(f"name a function of the file, as FILE.py:FUNCTION; {known}", where=str(path))
    found: Callable[..., Any] = own[name]
    return found


def _line_of(error: BaseException) -> str:
    try:
        text = str(error).splitlines()
    except Exception:  # an exception of the program that cannot be printed
        text = []
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _place_of(error: BaseException, path: Path) -> str:
    """The innermost line of the file that the error went through."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).name == path.name]
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [error.lineno]
    return f"{path}:{lines[-1]}" if lines else str(path)
