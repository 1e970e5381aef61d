"""Progress of HiGHS and SCIP: their log's branch-and-bound table, and HiGHS' file of solutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from treadle.planner.solver.interface import Backend


@dataclass
class Running:
    """What is known of a running solve. in_sub_mip: HiGHS is completing a partial hint, its bounds are not ours."""

    incumbent: float | None = None
    bound: float | None = None
    in_sub_mip: bool = False


def note_log(backend: Backend, text: str, state: Running) -> None:
    """Takes incumbent and bound from the rows of the branch-and-bound table; all other lines are passed over.

    A printed bound is rounded, so one unit of its last digit is taken off before it counts as proved.
    """
    for line in text.splitlines():
        if line.startswith("Attempting to find feasible solution by solving"):
            state.in_sub_mip = True
        elif line.startswith("Solving report"):
            state.in_sub_mip = False
        if backend is Backend.HIGHS:
            cells = line[3:].split()
            if len(cells) < 7 or not cells[3].endswith("%"):
                continue
            bound, incumbent = cells[4], cells[5]
        else:
            columns = line.split("|")
            if len(columns) < 10 or not columns[-2].strip().endswith(("%", "Inf")):
                continue
            bound, incumbent = columns[-4].strip(), columns[-3].strip()
        if (value := number(bound)) is not None and not state.in_sub_mip:
            proved = value - last_digit(bound)
            state.bound = proved if state.bound is None else max(state.bound, proved)
        if (value := number(incumbent)) is not None:
            state.incumbent = value


def number(text: str) -> float | None:
    """The finite number a cell holds, None for -inf, dashes and titles."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def last_digit(text: str) -> float:
    """One unit of the last printed digit: 0.01 for 12.34, 1e-4 for 1.2e-03."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))


def read_improving(text: str, n: int) -> list[list[float]]:
    """The solutions in what HiGHS wrote, last first: sections of a title line `# Columns n` and n lines `name value`.

    A section that breaks off, or that belongs to a sub-problem of another size, is left out.
    """
    found: list[list[float]] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line != f"# Columns {n}":
            continue
        section = lines[at + 1 : at + 1 + n]
        values = [number(entry.rpartition(" ")[2]) for entry in section]
        if len(values) == n and all(v is not None for v in values):
            found.append([v for v in values if v is not None])
    return found[::-1]
