"""How little the thresholds of gapped arrays and the expected share of inserts change (MAPLE, "Gapped Array")."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table, machine, progress
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import ALEX, Contender, Turns, alex
from benchmarks.index.workloads import inserts_then_lookups
from treadle.planner.passes.index.configurations import GappedArray, name_of_leaves
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload, Family

FAMILIES: tuple[Family, ...] = ("books", "fb", "osm")
THRESHOLDS = tuple(
    GappedArray(most_search=search, most_shifts=shifts) for search, shifts in ((1, 8), (4, 32), (8, 128))
)
SHARES = tuple(place / 10 for place in range(11))


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Gapped arrays with three thresholds against the cost model only, and ALEX told other shares of inserts."""
    yield Table(
        f"Only inserts: {size.operations:,} of them, {size.bulk:,} keys loaded; throughput over that of the cost model",
        [thresholds(family, size) for family in FAMILIES],
        ("gapped array Msi/Msh: most iterations of search and most shifts, on average", machine()),
    )
    for family in FAMILIES[::2]:
        progress(f"{family}, shares")
        yield Table(
            f"ALEX for other shares of inserts, {family}: {size.operations // 2:,} inserts, then as many lookups",
            shares(family, size),
            (f"ALEX: {ALEX}; published: inserts 2 % to 3 % faster for a share of 1 than for 0", machine()),
        )


def thresholds(family: Family, size: Size) -> Row:
    """One family, all thresholds in turns."""
    progress(f"{family}, thresholds")
    workload = drawn(DrawnWorkload(family=family, bulk=size.bulk, operations=size.operations, insert_share=1.0))
    named = {name_of_leaves(each): Contender(each, 1.0) for each in THRESHOLDS}
    turns = Turns({"cost model": alex(1.0), **named}, workload, size.turns)
    ratios = {name: turns.ratio(name, "cost model") for name in named}
    return {"keys": family, "cost model M/s": turns.per_second("cost model"), **ratios}


def shares(family: Family, size: Size) -> list[Row]:
    """One family, all shares in turns."""
    workload = inserts_then_lookups(family, size)
    named = {f"{share:.1f}": alex(share) for share in SHARES}
    turns = Turns(named, workload, size.turns, 2)
    return [{"expected share": name, "insert ns": turns.ns(name, 0), "lookup ns": turns.ns(name, 1)} for name in named]


if __name__ == "__main__":
    main(tables)
