"""Programs of the patterns of libraries: right by two checkers, and of the hops that the cost models price."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from treadle.codegen.collective import check as check_program
from treadle.codegen.ranks.programs import allreduce_of, program_of
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.ranks.patterns import pattern_of
from treadle.planner.passes.ranks.problem import RankedHost, RanksProblem

CASES = (
    *(("halving-doubling", count, ()) for count in (2, 4, 6, 7, 16)),
    *(
        ("bcube", count, factors)
        for count, factors in ((4, (4,)), (6, (3, 2)), (9, (3, 3)), (16, (4, 4)), (8, (2, 2, 2)))
    ),
    *((tree, count, ()) for tree in ("tree", "double-tree", "nccl-tree") for count in (2, 3, 7, 8)),
)


def problem(algorithm: str, count: int, factors: tuple[int, ...], slots: int = 1) -> RanksProblem:
    zeros = ((0,) * count,) * count
    hosts = tuple(RankedHost(name=f"h{number}", slots=slots) for number in range(count))
    sized = {"size_bytes": 720720, "factors": factors}
    return RanksProblem(version=1, hosts=hosts, latency_ns=zeros, algorithm=algorithm, **sized)


@pytest.mark.parametrize(("algorithm", "count", "factors"), CASES)
def test_a_program_adds_up_and_moves_what_its_pattern_says(
    algorithm: str, count: int, factors: tuple[int, ...]
) -> None:
    given = problem(algorithm, count, factors)
    decisions = allreduce_of(given)
    assert check(decisions) == []
    assert check_program.check(program_of(given)) == []
    chunk = Fraction(1, len(decisions.roots or ()))
    moved: Counter[frozenset[int]] = Counter()
    for move in decisions.transfers:
        moved[frozenset((move.src, move.dst))] += chunk
    priced: Counter[frozenset[int]] = Counter()
    pattern = pattern_of(given)
    for share, pairs, ways in (*((*each, 2) for each in pattern.rounds), *((*each, 1) for each in pattern.trees)):
        for pair in pairs:
            fold = algorithm == "halving-doubling" and share == 1
            priced[frozenset(pair)] += 2 * share * (1 if fold else ways)
    assert moved == priced


@pytest.mark.parametrize("algorithm", ["halving-doubling", "nccl-tree"])
def test_ranks_of_a_host_add_up_before_anything_leaves_it(algorithm: str) -> None:
    given = problem(algorithm, 4, (), slots=3)
    decisions = allreduce_of(given)
    assert check(decisions) == []
    assert decisions.ranks == 12
    across = {rank for move in decisions.transfers if move.src // 3 != move.dst // 3 for rank in (move.src, move.dst)}
    assert across == {0, 3, 6, 9}
    assert len(program_of(given).ranks) == 12
