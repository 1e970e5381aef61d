"""What leaves behind virtual calls, and averages kept for lookups too, cost (MAPLE, "Discussion")."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Table, machine, progress
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import Contender, Turns
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload, Family
from treadle.runtime.index.library import MONITOR_LOOKUPS, VIRTUAL_LEAVES

FAMILIES: tuple[Family, ...] = ("books", "fb", "osm")
SHARES = (0.0, 0.5)
LEAVES: tuple[IndexConfiguration, ...] = (
    GappedArray(most_search=4, most_shifts=32),
    FragmentedLog(fragment_keys=64, most_fragments=128, new_fragments=8),
)
FLAGS = {"as it is": 0, "virtual": VIRTUAL_LEAVES, "monitored": MONITOR_LOOKUPS}


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Leaves of one class against virtual calls, and lookups without against with averages kept."""
    rows = []
    for family in FAMILIES:
        for share in SHARES:
            workload = drawn(
                DrawnWorkload(family=family, bulk=size.bulk, operations=size.operations, insert_share=share)
            )
            for leaves in LEAVES:
                progress(f"{family}, {share:.0%} inserts, {name_of_leaves(leaves)}")
                turns = Turns(
                    {name: Contender(leaves, share, flags) for name, flags in FLAGS.items()}, workload, size.turns
                )
                rows.append(
                    {
                        "keys": family,
                        "inserts": f"{share:.0%}",
                        "leaves": name_of_leaves(leaves),
                        "M/s": turns.per_second("as it is"),
                        **{f"{name}/as it is": turns.ratio(name, "as it is") for name in ("virtual", "monitored")},
                    }
                )
    yield Table(
        f"{size.bulk:,} keys loaded, {size.operations:,} operations, one core",
        rows,
        ("published: virtual calls at worst 0.86, gapped arrays with monitored lookups at worst 0.97", machine()),
    )


if __name__ == "__main__":
    main(tables)
