"""One check in the process that `launch.run` starts: `python -m benchmarks.gpu.work ROOM.ITEM RESULT [--dry]`."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import Outcome

FRAMES = -6


def main(name: str, result: str, *dry: str) -> None:
    found = found_by(name, bool(dry))
    Path(result).write_text(json.dumps(found, default=str), encoding="utf-8")


def found_by(name: str, dry: bool) -> dict[str, Any]:
    """The result of a check, and its figure or the reason why it has none."""
    room, item = name.split(".gpu.", 1)
    module, *words = item.split(".")
    try:
        outcome: Outcome = import_module(f"{room}.gpu.{module}").check(dry, *words)
    except Exception as error:
        lines = tuple(traceback.format_exc(FRAMES).splitlines())
        kind = type(error).__name__
        if kind == "MissingBackendError" or (isinstance(error, ModuleNotFoundError) and _foreign(error)):
            return _result("missing", _line(error), lines)
        findings = tuple(getattr(error, "findings", ()))
        own = kind in ("CheckFailed", "InputError", "LimitError", "InfeasibleError")
        return _result("failed", _line(error) if own else f"{kind}: {_line(error)}", findings or lines)
    return _result("good", outcome.figure, (), [asdict(table) for table in outcome.tables])


def _foreign(error: ModuleNotFoundError) -> bool:
    return not (error.name or "").startswith(("benchmarks", "treadle", "examples"))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _result(word: str, figure: str, detail: tuple[str, ...], tables: list[Any] | None = None) -> dict[str, Any]:
    return {"result": word, "figure": figure, "detail": detail, "tables": tables or []}


if __name__ == "__main__":
    main(*sys.argv[1:])
