"""Every scheme brings what all participants contributed to everyone."""

from __future__ import annotations

from itertools import chain

import pytest

from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import COMBINATIONS, SCHEMES, Scheme


def test_four_dimensions_have_fifteen_combinations() -> None:
    found = {scheme.dimensions for scheme in COMBINATIONS}
    assert len(COMBINATIONS) == len(found) == 15
    assert sum("centralized" in dimensions for dimensions in found) == 5
    assert len({scheme.name for scheme in SCHEMES}) == len(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_everyone_gets_what_all_contributed(scheme: Scheme, n: int) -> None:
    done = exchange(scheme, n)
    everyone = set(range(n))
    # What each participant holds of each part: payloads by the workers in them.
    held = {(rank, part): {(rank,)} for rank in everyone for part in range(done.parts)}
    for messages in done.push:
        before = {place: set(payloads) for place, payloads in held.items()}
        for hop in messages:
            there = before[hop.src, hop.part]
            one_payload = scheme.aggregation == "incremental" and set(hop.workers) == set(chain(*there))
            assert one_payload or hop.workers in there
        for hop in messages:
            if scheme.name == "ring-incremental-centralized":
                held[hop.dst, hop.part] = {hop.workers, (hop.dst,)}
                continue
            assert not set(hop.workers) & set(chain(*held[hop.dst, hop.part])), "nothing is added twice"
            held[hop.dst, hop.part].add(hop.workers)
    core = 1 << (n.bit_length() - 1)
    summing = core if scheme.communication == "hierarchy" else n
    owners = {(rank, 0) for rank in range(summing)} if done.parts == 1 else {(part, part) for part in range(done.parts)}
    for place in owners:
        assert set(chain(*held[place])) == everyone
    for messages in done.pull:
        assert {(hop.src, hop.part) for hop in messages} <= owners
        owners |= {(hop.dst, hop.part) for hop in messages}
    assert owners == {(rank, part) for rank in everyone for part in range(done.parts)}
