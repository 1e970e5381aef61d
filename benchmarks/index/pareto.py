"""What each configuration of the fragmented log trades (MAPLE, "Fragmented Log", insert and lookup latency)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.common import Row, Table, machine, progress
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import Contender, Turns
from benchmarks.index.workloads import inserts_then_lookups
from treadle.planner.passes.index.configurations import FragmentedLog, grid, name_of_leaves

FAMILY = "osm"
COLUMNS = ("insert ns", "lookup ns")


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Insert and lookup latency of all fragmented logs, and which of them no other is better than in both."""
    workload = inserts_then_lookups(FAMILY, size)
    rows: list[Row] = []
    logs = [each for each in grid() if isinstance(each, FragmentedLog)]
    for number, log in enumerate(logs):
        name = name_of_leaves(log)
        progress(f"{number + 1} of {len(logs)}: {name}")
        turns = Turns({name: Contender(log, 0.5)}, workload, size.turns, 2)
        if turns.runs:
            latency = {column: turns.ns(name, window) for window, column in enumerate(COLUMNS)}
            rows.append({"index": name, **latency, "B/key": (turns.bytes(name) or 0) / workload.keys_at_end()})
    best = front([(row[COLUMNS[0]], row[COLUMNS[1]]) for row in rows])
    yield Table(
        f"{size.bulk:,} keys of {FAMILY} loaded, {size.operations // 2:,} inserts, then as many lookups",
        sorted(
            ({**row, "on the front": place in best} for place, row in enumerate(rows)), key=lambda row: row[COLUMNS[0]]
        ),
        (f"{len(best)} of {len(rows)} are on the front", machine()),
    )


def front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Places of the points that no other is below in one coordinate and not above in the other."""
    return {
        place
        for place, (x, y) in enumerate(points)
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
    }


if __name__ == "__main__":
    main(tables)
