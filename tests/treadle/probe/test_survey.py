"""The network that streams show is the network that carried them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from treadle.probe.survey import Pair, survey


def carried(
    nics: Sequence[float],
    racks: Sequence[tuple[tuple[int, ...], float]] = (),
    slow: dict[Pair, float] | None = None,
    noise: float = 0.0,
    chance: Random | None = None,
) -> Callable[[Sequence[Pair]], list[float]]:
    """Streams that share every link fairly, the narrowest first; every second experiment is slower by `noise`.

    With `chance`, one stream gets up to three times as much of a full link as another, as in the lab.
    """
    calls = [0]

    def links(src: int, dst: int) -> list[tuple[object, float]]:
        found: list[tuple[object, float]] = [(("out", src), nics[src]), (("in", dst), nics[dst])]
        if (min(src, dst), max(src, dst)) in (slow or {}):
            found.append((("pair", src, dst), (slow or {})[min(src, dst), max(src, dst)]))
        for place, (rack, rate) in enumerate(racks):
            if (src in rack) != (dst in rack):
                found.append(((place, src in rack), rate))
        return found

    def streams(pairs: Sequence[Pair]) -> list[float]:
        calls[0] += 1
        left = dict(enumerate(pairs))
        room = {link: rate for pair in pairs for link, rate in links(*pair)}
        rates = [0.0] * len(pairs)
        weights = [chance.uniform(0.5, 1.5) if chance else 1.0 for _ in pairs]
        while left:
            users = {link: [p for p, pair in left.items() if link in dict(links(*pair))] for link in room}
            shares = {link: room[link] / sum(weights[p] for p in places) for link, places in users.items() if places}
            narrow = min(shares, key=lambda link: shares[link])
            for place in users[narrow]:
                rates[place] = shares[narrow] * weights[place]
                for link, _ in links(*left.pop(place)):
                    room[link] -= rates[place]
        return [rate * (1 - noise * (calls[0] % 2)) for rate in rates]

    return streams


def test_two_racks_at_four_to_one() -> None:
    racks = [((0, 1, 2, 3), 100.0), ((4, 5, 6, 7), 100.0)]
    found = survey(8, carried([100.0] * 8, racks, noise=0.05))
    assert found.nics == pytest.approx([100.0] * 8, rel=0.06)
    assert [nodes for nodes, _ in found.uplinks] == [nodes for nodes, _ in racks]
    assert [rate for _, rate in found.uplinks] == pytest.approx([100.0] * 2, rel=0.1)
    assert found.slow_pairs == {}


@pytest.mark.parametrize("rate", [40.0, 100.0, 200.0])
def test_three_interleaved_racks_and_a_host_at_the_core(rate: float) -> None:
    """Also with uplinks slower than a NIC, and twice as fast."""
    racks = [((0, 3, 6), rate), ((1, 4, 7), rate), ((2, 5, 8), rate)]
    found = survey(10, carried([100.0] * 10, racks))
    assert [nodes for nodes, _ in found.uplinks] == [nodes for nodes, _ in racks]
    assert [each for _, each in found.uplinks] == pytest.approx([rate] * 3, rel=0.1)


def test_a_slow_nic_and_a_slow_pair_are_no_uplinks() -> None:
    found = survey(5, carried([100.0, 100.0, 100.0, 25.0, 100.0], slow={(0, 2): 50.0}))
    assert found.nics == (100.0, 100.0, 100.0, 25.0, 100.0)
    assert found.slow_pairs == {(0, 2): 50.0}
    assert found.uplinks == ()


def test_two_hosts_and_many() -> None:
    assert survey(2, carried([100.0, 10.0])).nics == (10.0, 10.0)
    found = survey(18, carried([100.0] * 18, [(tuple(range(9)), 300.0), (tuple(range(9, 18)), 300.0)]))
    assert [nodes for nodes, _ in found.uplinks] == [tuple(range(9)), tuple(range(9, 18))]
    assert found.uplinks[0][1] == pytest.approx(300.0, rel=0.1)


def test_two_racks_of_two_whose_streams_divide_a_full_uplink_unevenly() -> None:
    racks = [((0, 1), 100.0), ((2, 3), 100.0)]
    for seed in range(100):
        found = survey(4, carried([100.0] * 4, racks, chance=Random(seed)))
        assert [nodes for nodes, _ in found.uplinks] == [nodes for nodes, _ in racks], seed
        assert [rate for _, rate in found.uplinks] == pytest.approx([100.0] * 2, rel=0.1)


def test_a_host_belongs_to_the_rack_to_which_it_keeps_most() -> None:
    """Streams between racks that keep most of their rate, as on a machine that starts the others late."""
    racks = [((0, 1, 2, 3), 100.0), ((4, 5, 6, 7), 100.0)]
    inner = carried([100.0] * 8, racks)

    def streams(pairs: Sequence[Pair]) -> list[float]:
        late = len(pairs) > 2 and pairs[0] == (0, 6)
        return [85.0, 85.0, *inner(pairs)[2:]] if late else inner(pairs)

    assert [nodes for nodes, _ in survey(8, streams).uplinks] == [nodes for nodes, _ in racks]
