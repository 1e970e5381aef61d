"""A service whose share of inserts grows: why more than one kind of leaves (MAPLE, "Motivation")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.common import Table, machine
from benchmarks.index.peers import NOTE, peers
from benchmarks.index.sizes import DEFAULT, Size, main
from benchmarks.index.turns import ALEX, ANY, Contender, Turns, alex
from treadle.planner.passes.index.configurations import FragmentedLog, name_of_leaves
from treadle.planner.passes.index.families import workload_of
from treadle.planner.passes.index.operations import INSERT

SHARES = (0.15, 0.85, 1.0)
LOGS = tuple(FragmentedLog(fragment_keys=keys, most_fragments=512, new_fragments=8) for keys in (32, 128))
SEED = 1


def tables(size: Size = DEFAULT) -> Iterator[Table]:
    """Lookups, then inserts, then only inserts, on the keys of a map: ns of an operation by phase and index."""
    random = np.random.Generator(np.random.PCG64(SEED))
    each = size.operations // len(SHARES)
    ops = np.concatenate([random.random(each) < share for share in SHARES]).astype(np.uint8) * np.uint8(INSERT)
    workload = workload_of("osm", size.bulk, ops, SEED)
    contenders = {
        "ALEX": alex(SHARES[0]),
        "ALEX-W": alex(1.0),
        **{name_of_leaves(log): Contender(log, 0.5) for log in LOGS},
        **{name: Contender(ANY, 0.5, library=library) for name, library in peers().items()},
    }
    turns = Turns(contenders, workload, size.turns, len(SHARES))
    yield Table(
        f"{size.bulk:,} keys of osm loaded, then {each:,} operations of each kind: ns of one",
        [
            {"index": name, **{f"{share:.0%} inserts": turns.ns(name, place) for place, share in enumerate(SHARES)}}
            for name in contenders
        ],
        (f"ALEX: {ALEX}, for {SHARES[0]:.0%} inserts; ALEX-W: for inserts only", NOTE, machine()),
    )


if __name__ == "__main__":
    main(tables)
