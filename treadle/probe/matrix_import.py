"""A table of latencies between hosts, as a prober of your own prints it, as a cost matrix.

The first line names the hosts, every other one a host and its numbers; commas, semicolons, tabs or blanks are between
them.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import VERSION, CostHost, CostMatrix
from treadle.planner.errors import InputError

ENDING = ".csv"
MISSING = ("", "-", "nan", "NaN", "null")


def import_matrix(path: Path, name: str | None, scale: float) -> CostMatrix:
    """The cost matrix in the table `path`, whose numbers times `scale` are microseconds, half of a round trip.

    Raises InputError, naming the line.
    """
    rows = [
        (number, _cells(line))
        for number, line in enumerate(store.read_text(path).splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not rows:
        raise InputError("found nothing, expected a line that names the hosts", where=str(path))
    header = rows[0][1]
    hosts = header[1:] if len(header) == len(rows) else header
    if len(rows) != len(hosts) + 1:
        raise InputError(f"found {len(rows) - 1} rows, expected one for each of {len(hosts)} hosts", where=str(path))
    latency = []
    for place, (number, (host, *cells)) in enumerate(rows[1:]):
        where = f"{path}: line {number}"
        if host != hosts[place]:
            raise InputError(f"found the row of {host!r}, expected that of {hosts[place]!r}", where=where)
        if len(cells) != len(hosts):
            raise InputError(f"found {len(cells)} numbers, expected one for each of {len(hosts)} hosts", where=where)
        latency.append(tuple(0.0 if at == place else _number(cell, scale, where) for at, cell in enumerate(cells)))
    costs = CostMatrix(
        version=VERSION,
        name=name or path.stem,
        hosts=tuple(CostHost(name=host) for host in hosts),
        latency_us=tuple(latency),
        sources={"latency_us": f"{path.name}, imported" + (f"; times {scale:g}" if scale != 1 else "")},
    )
    return store.loads(store.dumps(costs), str(path), CostMatrix)


def _cells(line: str) -> list[str]:
    separator = next((each for each in (",", ";", "\t") if each in line), None)
    if separator is None:
        return line.split()
    return [re.sub(r'^"(.*)"$', r"\1", cell.strip()) for cell in line.split(separator)]


def _number(cell: str, scale: float, where: str) -> float | None:
    if cell in MISSING:
        return None
    try:
        value = float(cell) * scale
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise InputError(f"found {cell!r}, expected a number from 0 on, or nothing", where=where)
    return value
