"""MAPLE next to ALEX, a B+tree and std::map, from only inserts to only lookups (MAPLE, "Throughput comparison")."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table, machine, progress
from benchmarks.index.choice import chosen
from benchmarks.index.peers import NOTE, peers
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import ALEX, Contender, Turns, alex
from treadle.planner.documents.scalars import many
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
MEMORY: dict[tuple[Family, float], str] = {("books", 0.85): "0.95", ("osm", 0.85): "1.10", ("fb", 0.0): "1.22"}
"""The same for memory at the end, where it is not "within 4 %" (MAPLE, "Memory usage")."""


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Throughput and memory of MAPLE's choice, ALEX, a B+tree and std::map, by family and share of inserts."""
    speeds, memory = [], []
    for family in FAMILIES:
        for share in SHARES:
            progress(f"{family}, {share:.0%} inserts")
            speed, held = compared(family, share, size)
            speeds.append(speed)
            memory.append(held)
    losses = [f"{row['keys']} {row['inserts']} {row['MAPLE/ALEX']:.2f}" for row in speeds if row["MAPLE/ALEX"] < 1]
    what = f"{size.bulk:,} keys loaded, {size.operations:,} operations, one core"
    notes = (f"ALEX: {ALEX}, with the true share of inserts", NOTE)
    yield Table(
        f"{what}: million operations in a second, the median of {many(size.turns, 'turn')}",
        speeds,
        (
            *notes,
            "published: MAPLE/ALEX on other keys and another machine",
            f"slower than ALEX: {', '.join(losses) or 'nowhere'}",
            "missed: the fastest of a few configurations of all kinds over MAPLE's choice, where it was made",
            machine(),
        ),
    )
    yield Table(f"{what}: bytes for each key at the end, of which key and payload have 16", memory, notes)


def compared(family: Family, share: float, size: Size) -> tuple[Row, Row]:
    """Throughput and memory on one workload, all indexes in turns."""
    workload = drawn(
        DrawnWorkload(family=family, bulk=size.bulk, operations=size.operations, insert_share=share, seed=1)
    )
    choice, missed = chosen(workload, share)
    others = {name: Contender(choice, share, library=library) for name, library in peers().items()}
    contenders = {"MAPLE": Contender(choice, share), "ALEX": alex(share), **others}
    turns = Turns(contenders, workload, size.turns)
    named: Row = {"keys": family, "inserts": f"{share:.0%}"}
    speed = {name: turns.per_second(name) for name in contenders}
    ratios = {f"MAPLE/{name}": turns.ratio("MAPLE", name) for name in others}
    against = {"MAPLE/ALEX": turns.ratio("MAPLE", "ALEX"), "published": PUBLISHED[family, share], **ratios}
    held = {name: (turns.bytes(name) or 0) / workload.keys_at_end() for name in contenders}
    published = MEMORY.get((family, share), "0.96 to 1.04")
    return (
        {**named, "choice": name_of_leaves(choice), **speed, **against, "missed": missed},
        {**named, **held, "MAPLE/ALEX": held["MAPLE"] / held["ALEX"], "published": published},
    )


if __name__ == "__main__":
    main(tables)
