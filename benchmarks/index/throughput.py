"""MAPLE next to ALEX, a B+tree and std::map, from only inserts to only lookups (MAPLE, "Throughput comparison")."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table, machine, progress
from benchmarks.index.choice import chosen
from benchmarks.index.peers import peers
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import ALEX, Contender, Turns, alex
from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload, Family

FAMILIES: tuple[Family, ...] = ("books", "fb", "osm")
SHARES = (1.0, 0.85, 0.15, 0.0)
PUBLISHED: dict[tuple[Family, float], str] = {
    ("books", 1.0): "1.88",
    ("fb", 1.0): "7.5",
    ("osm", 1.0): "3.9",
    ("books", 0.85): "about 1",
    ("fb", 0.85): "2.8",
    ("osm", 0.85): "2",
    **{(family, 0.15): "0.92 to 0.96" for family in FAMILIES},
    ("books", 0.0): "0.97",
    ("fb", 0.0): "about 0.80",
    ("osm", 0.0): "0.92",
}
"""MAPLE / ALEX on the paper's machine and data."""


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Operations in a second of MAPLE's choice, ALEX, a B+tree and std::map, by family and share of inserts."""
    rows = []
    for family in FAMILIES:
        for share in SHARES:
            progress(f"{family}, {share:.0%} inserts")
            rows.append(compared(family, share, size))
    losses = [f"{row['keys']} {row['inserts']}: {row['MAPLE/ALEX']:.2f}" for row in rows if row["MAPLE/ALEX"] < 1]
    yield Table(
        f"{size.bulk:,} keys loaded, {size.operations:,} operations, one core",
        rows,
        (
            f"ALEX: {ALEX}, with the true share of inserts",
            "M/s: million operations in a second, the median of turns; published: MAPLE/ALEX on other keys and machine",
            f"slower than ALEX: {', '.join(losses) or 'nowhere'}",
            machine(),
        ),
    )


def compared(family: Family, share: float, size: Size) -> Row:
    """One workload, all indexes in turns."""
    workload = drawn(
        DrawnWorkload(family=family, bulk=size.bulk, operations=size.operations, insert_share=share, seed=1)
    )
    choice = chosen(workload, share)
    others = {name: Contender(choice, share, library=library) for name, library in peers().items()}
    turns = Turns({"MAPLE": Contender(choice, share), "ALEX": alex(share), **others}, workload, size.turns)
    row: Row = {"keys": family, "inserts": f"{share:.0%}", "MAPLE's choice": name_of_leaves(choice)}
    row |= {f"{name} M/s": turns.per_second(name) for name in ("MAPLE", "ALEX", *others)}
    row |= {"MAPLE/ALEX": turns.ratio("MAPLE", "ALEX"), "published": PUBLISHED[family, share]}
    row |= {f"MAPLE/{name.split(' ')[0]}": turns.ratio("MAPLE", name) for name in others}
    mine, theirs, keys = turns.bytes("MAPLE"), turns.bytes("ALEX"), workload.keys_at_end()
    return row | {"MAPLE B/key": (mine or 0) / keys, "ALEX B/key": (theirs or 0) / keys}


if __name__ == "__main__":
    main(tables)
