"""The two exact methods of Cupcake against enumeration of all partitions, and its worked examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest

from treadle.planner.passes.compression.cupcake import best_grouping
from treadle.planner.passes.compression.cupcake_search import affine, faithful_search, joining_ns, search
from treadle.planner.passes.compression.group_costs import GroupCosts, Grouping, grouping_of, tables


def partitions(count: int) -> Iterator[tuple[int, ...]]:
    """The ends of the groups of every partition."""
    for cuts in range(count):
        for inner in combinations(range(count - 1), cuts):
            yield (*inner, count - 1)


def formula(costs: GroupCosts, ends: tuple[int, ...]) -> int:
    """The recurrence of the paper's figures, written down once more."""
    backward, encode, send = costs.backward.tolist(), costs.encode.tolist(), costs.send.tolist()
    stream = channel = first = 0
    for end in ends:
        stream += sum(backward[first : end + 1]) + encode[first][end]
        channel = max(stream, channel) + send[first][end]
        first = end + 1
    return channel


def enumerated(costs: GroupCosts, time: Callable[[GroupCosts, tuple[int, ...]], int] = formula) -> Grouping:
    """The best of all partitions by the rule for ties."""
    found = (Grouping(time(costs, ends), ends, (0,) * len(ends)) for ends in partitions(len(costs.backward)))
    return min(found, key=lambda grouping: grouping.key)


def ends_of(text: str) -> tuple[int, ...]:
    """`01|23` has the ends 1 and 3."""
    return tuple(int(group[-1]) for group in text.split("|"))


C1 = tables([2, 4, 4, 2], [4, 3, 1, 1], lambda size: 2, lambda size: 1 + size)
C2 = tables([1, 1, 1, 1], [6, 1, 1, 1], lambda size: 1, lambda size: 1 + size)
C3 = tables([4, 1, 1, 4], [2, 2, 2, 2], lambda size: 1 + size // 2, lambda size: 1)
PLATEAU = tables(  # in tenths
    [5, 5, 5, 5, 20, 10], [3, 7, 5, 1, 4, 2], lambda size: max(10, 2 * size), lambda size: 1 + 3 * size
)
ONE = grouping_of([PLATEAU], (5,), (0,))
TIE = tables([2, 2, 2], [1, 1, 1], lambda size: 1 + size, lambda size: 1 + 2 * size)


EXAMPLES = (
    (C1, "01|23 19, 01|2|3 20, 0|1|23 21, 0|12|3 21, 0|1|2|3 22, 0|123 22, 012|3 23, 0123 24"),
    (C2, "0|123 13, 0|1|23 14, 0|12|3 14, 01|23 14, 0|1|2|3 15, 01|2|3 15, 012|3 15, 0123 15"),
    (C3, "0123 16, 0|123 17, 01|23 17, 012|3 17, 0|1|23 18, 0|12|3 18, 01|2|3 18, 0|1|2|3 19"),
    (PLATEAU, "01|2|34|5 107, 01|23|4|5 109"),
    (TIE, "0|1|2 15, 01|2 15, 0|12 16, 012 17"),
)


@pytest.mark.parametrize(("costs", "listed"), EXAMPLES)
def test_worked_examples(costs: GroupCosts, listed: str) -> None:
    times = {text: int(ns) for text, ns in (each.split() for each in listed.split(", "))}
    for text, ns in times.items():
        ends = ends_of(text)
        assert grouping_of([costs], ends, [0] * len(ends)).ns == formula(costs, ends) == ns
    best = enumerated(costs)
    assert best.ns == min(times.values())
    assert best_grouping([costs]) == best
    assert faithful_search(costs).grouping == best


def test_the_search_visits_what_the_paper_says() -> None:
    seen: list[tuple[int, int, int, int]] = []
    found = search(C1, start=Grouping(24, (3,), (0,)), visit=lambda *at: seen.append(at))
    assert seen == [
        (0, 0, 16, 15), (1, 1, 18, 17), (2, 2, 20, 20), (3, 3, 20, 22), (2, 3, 18, 21), (1, 2, 18, 21), (1, 3, 16, 22),
        (0, 1, 16, 19), (2, 3, 16, 19), (0, 2, 16, 23), (0, 3, 14, 24),
    ]  # fmt: skip
    assert found.grouping == Grouping(19, (1, 3), (0, 0))
    assert (found.nodes, found.bounded, found.skipped, found.complete) == (11, 4, 1, True)


def test_the_second_pruning_skips_groups_of_which_longer_ones_are_still_hidden() -> None:
    seen: list[tuple[int, int]] = []
    search(C2, start=Grouping(15, (3,), (0,)), visit=lambda first, last, base, case: seen.append((first, last)))
    assert (1, 3) in seen
    assert not {(1, 1), (1, 2)} & set(seen)


def test_the_second_pruning_is_off_where_costs_have_a_plateau() -> None:
    assert search(PLATEAU, start=ONE).grouping.ns == 109
    assert search(PLATEAU, start=ONE, skipping=False).grouping.ns == 107
    assert not affine(PLATEAU.encode)
    assert joining_ns(PLATEAU.encode) == 0
    assert faithful_search(PLATEAU).skipped == 0


def test_the_first_pruning_is_right_where_joining_groups_costs_more() -> None:
    costs = tables([1] * 4, [1] * 4, lambda size: 1 + 9 * max(0, size - 2), lambda size: 1)
    assert joining_ns(costs.encode) == 17
    assert joining_ns(costs.send) == 0
    assert faithful_search(costs).grouping.ns == enumerated(costs).ns == best_grouping([costs]).ns


@pytest.mark.parametrize("rounded", [False, True])
def test_the_first_pruning_agrees_with_enumeration_for_costs_that_are_not_subadditive(rounded: bool) -> None:
    rng = random.Random(11)
    instances = [jumping(rng, rounded) for _ in range(200)]
    found = [(search(costs, skipping=False), enumerated(costs).ns) for costs in instances]
    assert all(searched.grouping.ns == least for searched, least in found)
    assert sum(searched.bounded for searched, _ in found) > 1000


def jumping(rng: random.Random, rounded: bool) -> GroupCosts:
    """Costs where joining two groups may cost more: of sizes in whole words, or from some size on."""
    launch, slope, free, word = rng.randint(0, 4), rng.randint(1, 6), rng.randint(2, 12), rng.randint(2, 5)
    return tables(
        [rng.randint(0, 8) for _ in range(8)],
        [rng.randint(1, 9) for _ in range(8)],
        lambda size: launch + (-(-size // word) * word if rounded else slope * max(0, size - free)),
        lambda size: launch + size * slope // word,
    )


def test_one_gradient() -> None:
    costs = tables([3], [5], lambda size: 1, lambda size: size)
    assert best_grouping([costs]) == search(costs).grouping == Grouping(9, (0,), (0,))


def random_costs(rng: random.Random, count: int, plateau: int = 0) -> GroupCosts:
    alpha, beta, start, slope = (rng.randint(0, 6) for _ in range(4))
    return tables(
        [rng.randint(0, 8) for _ in range(count)],
        [rng.randint(1, 9) for _ in range(count)],
        lambda size: max(plateau, alpha + beta * size),
        lambda size: start + slope * size,
        lambda size: alpha + slope * size // 2,
    )


def test_all_methods_agree_with_enumeration_on_a_thousand_affine_instances() -> None:
    rng = random.Random(5)
    for _ in range(1000):
        costs = random_costs(rng, min(rng.randint(1, 9), rng.randint(1, 9))).with_decoding("ignore")
        best = enumerated(costs)
        assert best_grouping([costs]).ns == best.ns
        for bounding, skipping in ((True, True), (True, False), (False, True)):
            assert search(costs, bounding=bounding, skipping=skipping).grouping.ns == best.ns


@pytest.mark.parametrize("count", [12, 16])
def test_longer_rows_agree_with_enumeration(count: int) -> None:
    costs = random_costs(random.Random(count), count, plateau=9).with_decoding("fold")
    every = 0 if count > 12 else enumerated(costs).ns
    assert best_grouping([costs]).ns == search(costs, skipping=False).grouping.ns == (every or fast(costs))


def fast(costs: GroupCosts) -> int:
    """The least time of all partitions, computed for all at once: bit i of a number cuts after gradient i."""
    count = len(costs.backward)
    cuts = np.arange(1 << (count - 1), dtype=np.int64)
    stream, channel, first = np.zeros_like(cuts), np.zeros_like(cuts), np.zeros_like(cuts)
    for end in range(count):
        stream += int(costs.backward[end])
        ends = (cuts >> end & 1).astype(bool) | (end == count - 1)
        stream += np.where(ends, costs.encode[first, end], 0)
        channel = np.where(ends, np.maximum(stream, channel) + costs.send[first, end], channel)
        first = np.where(ends, end + 1, first) if end + 1 < count else first
    return int(channel.min())


def test_decoding_after_all_other_work_agrees_with_enumeration() -> None:
    rng = random.Random(7)
    for _ in range(150):
        costs = random_costs(rng, rng.randint(1, 7))
        best = min(grouping_of([costs], ends, [0] * len(ends)).ns for ends in partitions(len(costs.backward)))
        assert best_grouping([costs]).ns == best


def test_decoding_is_charged_where_it_is_said() -> None:
    costs = tables([1], [2], lambda size: 3, lambda size: 5, lambda size: 7)
    times = [best_grouping([costs.with_decoding(mode)]).ns for mode in ("ignore", "fold", "tail")]
    assert times == [9, 16, 16]
    two = tables([1, 1], [1, 1], lambda size: 0, lambda size: 10, lambda size: 4)
    ends = ((0, 1), (0, 0))
    assert grouping_of([two.with_decoding("fold")], *ends).ns == 25
    assert grouping_of([two], *ends).ns == 25
    assert grouping_of([two.with_decoding("ignore")], *ends).ns == 21


def test_groups_may_have_one_of_several_options() -> None:
    rng = random.Random(11)
    for _ in range(60):
        count = rng.randint(1, 5)
        costs = random_costs(rng, count)
        other = random_costs(rng, count)
        both = [
            costs.with_decoding("fold"),
            GroupCosts(costs.backward, other.encode, other.send, other.decode * 0, costs.allowed),
        ]
        best = min(
            grouping_of(both, ends, [number >> place & 1 for place in range(len(ends))]).ns
            for ends in partitions(count)
            for number in range(1 << len(ends))
        )  # fmt: skip
        assert best_grouping(both).ns == best


def test_no_group_passes_the_limit_of_bytes() -> None:
    costs = tables([1] * 6, [2] * 6, lambda size: 50, lambda size: 1)
    few = GroupCosts(
        costs.backward,
        costs.encode,
        costs.send,
        costs.decode,
        costs.allowed & (np.arange(6)[None, :] - np.arange(6)[:, None] < 2),
    )
    assert best_grouping([costs]).ends == (5,)
    assert best_grouping([few]).ends == search(few).grouping.ends == (1, 3, 5)


def test_a_limit_ends_the_search_with_the_best_so_far() -> None:
    costs = random_costs(random.Random(3), 9).with_decoding("ignore")
    cut = search(costs, node_limit=5)
    assert not cut.complete
    assert cut.nodes == 5
    assert cut.grouping.ns >= best_grouping([costs]).ns
    ended = best_grouping([costs], expired=lambda: True)
    assert ended.cut
    assert ended.ns == formula(costs, ended.ends)
    assert not best_grouping([costs]).cut


@pytest.mark.parametrize("count", [161, 207, 314])
def test_long_rows_agree_with_a_program_over_numbers_of_groups(count: int) -> None:
    """With affine costs the stream's time at a boundary follows from the number of groups, and the channel's is least
    for each."""
    rng = random.Random(count)
    sizes = [rng.choice((1, 2, 40, 900)) for _ in range(count)]
    backward = [rng.randint(0, 60) for _ in range(count)]
    costs = tables(backward, sizes, lambda size: 40 + size, lambda size: 15 + size)
    work, passed = np.cumsum(np.array(backward) + sizes), np.append(0, np.cumsum(sizes))
    least = np.full(count + 1, 1 << 40)
    least[0] = 0
    best = int(least[-1])
    for groups in range(1, 60):
        stream = np.append(0, work + groups * 40)
        sent = 15 + passed[None, :] - passed[:, None]
        ends = np.maximum(stream[None, :], least[:, None]) + sent
        least = np.where(np.triu(np.ones_like(ends), 1) > 0, ends, 1 << 40).min(0)
        best = min(best, int(least[-1]))
    found = best_grouping([costs])
    assert len(found.ends) < 60
    assert found.ns == formula(costs, found.ends) == best
