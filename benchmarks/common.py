"""What the benchmarks share: tables that print and that become JSON, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """One result: a row maps a column, whose name carries the unit, to a value; a missing or null value prints as -."""

    title: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def show(tables: Iterable[Table], as_json: bool) -> None:
    """Print each table as soon as it is measured; print JSON once all are."""
    if as_json:
        print(json.dumps({"machine": machine(), "tables": [asdict(table) for table in tables]}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if sys.stdout.isatty() else 180)
    for table in tables:
        printed = RichTable(title=table.title, title_justify="left", box=box.SIMPLE)
        columns = list(dict.fromkeys(column for row in table.rows for column in row))
        for column in columns:
            words = all(isinstance(row.get(column), str | None) for row in table.rows)
            printed.add_column(column, justify="left" if words else "right")
        for row in table.rows:
            printed.add_row(*(cell(row.get(column)) for column in columns))
        console.print(printed)
        for note in table.notes:
            console.print(note)


def progress(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """Cores and load of this machine."""
    return f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def without_gpu(title: str) -> Iterator[Table]:
    """An empty table that says that there is no GPU; nothing on a machine with one."""
    try:
        import torch
    except ImportError:
        yield Table(title, [], ("no GPU: PyTorch is not installed",))
        return
    if not torch.cuda.is_available():
        yield Table(title, [], ("no GPU",))


def gpu_milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time of one run between two events, after three warm-up runs."""
    import torch

    event: Any = torch.cuda.Event
    times: list[float] = []
    for turn in range(repeats + 3):
        start, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(start.elapsed_time(end))
    return median(times)
