"""What ranks load, store and send, counted while they run, compared with tables worked by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.common import Row, Table, progress
from benchmarks.fusion.counters import counters
from tests.planner.passes.fusion.by_hand import SCHEDULES
from treadle.codegen.fusion.lower import lower
from treadle.planner.passes.fusion.counts import counts, total
from treadle.planner.passes.fusion.program import Bindings
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs

RUNS = 2


@dataclass(frozen=True)
class Entry:
    """A row of a table: the schedule as by_hand names it, and a rank's elements.

    `volumes` are the elements it sends: in its group, or in the first group, the second one and between them. `traffic`
    are those it loads and stores, with the expression that gives them."""

    schedule: str
    volumes: tuple[int, ...]
    traffic: int | None = None
    formula: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table, for two ranks of a group."""

    title: str
    program: str
    bindings: Bindings
    entries: tuple[Entry, ...]


def _hand_over(volumes: tuple[int, ...], *schedules: str) -> tuple[Entry, ...]:
    return tuple(Entry(schedule, volumes) for schedule in schedules)


SHEETS = (
    Sheet(
        "SGD, N = 4",
        "sgd extended",
        Bindings({"N": 4}, 2),
        (
            Entry("ar", (4,), 20, "5N"),
            Entry("rs ag c", (4,), 24, "5N+2N/n"),
            Entry("rs c ag", (4,), 18, "2N+5N/n"),
            Entry("fused", (4,), 10, "2N+N/n"),
            Entry("fused rs", (4,), 14, "2N+3N/n"),
            Entry("fused ag", (4,), 14, "2N+3N/n"),
        ),
    ),
    Sheet(
        "attention, V = 8, H = 4",
        "attention",
        Bindings({"B": 1, "S": 2, "H": 4}, 2),
        (
            Entry("ar+", (8,), 44, "5V+H"),
            Entry("rs ag c+", (8,), 52, "5V+2V/n+H"),
            Entry("rs c ag+", (8,), 40, "2V+5V/n+H"),
            Entry("fused+", (8,), 24, "2V+V/n+H"),
        ),
    ),
    Sheet(
        "Adam, N = 4",
        "adam",
        Bindings({"N": 4}, 2),
        (
            Entry("ar", (4,), 36, "9N"),
            Entry("rs ag c", (4,), 40, "9N+2N/n"),
            Entry("rs c ag", (8,), 38, "4N+11N/n"),
            Entry("rs c agm", (6,), 32, "3N+10N/n"),
            Entry("rs c agv", (6,), 32, "3N+10N/n"),
            Entry("rs c agmv", (4,), 26, "2N+9N/n"),
            Entry("fused", (4,), 18, "2N+5N/n"),
        ),
    ),
    Sheet(
        "pipeline, V = 4",
        "pipeline",
        Bindings({"B": 1, "S": 2, "H": 2}, 2, 2),
        (
            *_hand_over((4, 0, 4), "ar c p", "ar cp", "rs ag c p", "rs ag cp", "rs c ag p", "fused p"),
            *_hand_over((6, 0, 4), "ar c ag p"),
            *_hand_over((4, 2, 2), "ar c p ag", "ar cp ag"),
            *_hand_over((2, 2, 2), "rs c p ag", "rs cp ag"),
        ),
    ),
)


def tables() -> Iterator[Table]:
    """Traffic and volume of the hand-worked tables, counted on fibers with ring collectives."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for sheet in SHEETS:
            progress(f"fusion.tables: {sheet.title}")
            rows = list(pool.map(row, [sheet] * len(sheet.entries), sheet.entries))
            equal = sum(one["equal"] for one in rows)
            yield Table(
                f"{sheet.title}: elements of a rank, {sheet.bindings.ranks} ranks of a group",
                rows,
                (f"{equal} of {len(rows)} rows equal, on every rank; volume: in the group, or in each and between.",),
            )


def row(sheet: Sheet, entry: Entry) -> Row:
    """What all ranks counted in one run: one number if they agree, else the numbers of all."""
    write, _ = SCHEDULES[sheet.program]
    lowered = lower(write(entry.schedule), sheet.bindings)
    compared = compare(build(lowered, counts=True, quickly=True), lowered, Runs(RUNS, order=1))
    traffic, *volumes = (of.counted for of in counters(lowered.program, sheet.bindings, compared.report.counted, RUNS))
    # the table of the attention tail begins after the product
    products = [stage.traffic for stage in counts(lowered.program).stages if stage.kind == "matmul"]
    traffic = tuple(amount - int(total(products).value(sheet.bindings)) for amount in traffic)
    ranks = sheet.bindings.ranks
    wanted = [(amount,) * ranks for amount in entry.volumes]
    found: Row = {"schedule": entry.schedule}
    if entry.traffic is not None:
        found |= {"traffic": entry.formula, "table": str(entry.traffic), "counted": _shown(traffic)}
    found |= {"volume, table": " ".join(map(str, entry.volumes)), "volume, counted": " ".join(map(_shown, volumes))}
    equal = volumes == wanted and (entry.traffic is None or set(traffic) == {entry.traffic})
    return {**found, "right": compared.good, "equal": equal}


def _shown(amounts: tuple[int, ...]) -> str:
    return str(amounts[0]) if len({*amounts}) == 1 else "/".join(map(str, amounts))
