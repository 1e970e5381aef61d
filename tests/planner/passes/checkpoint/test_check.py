"""The checker accepts what the planner decides, and refuses each kind of corruption."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.checkpoint.agreement import disagreements, plan_of
from tests.planner.passes.checkpoint.checkpoint_plans import COPYING, PROBLEM, by_hand, decided_for
from treadle.planner.passes.checkpoint.check import check
from treadle.planner.passes.checkpoint.check_bound import best_interval, interval_findings
from treadle.planner.passes.checkpoint.check_placement import published_holders
from treadle.planner.passes.checkpoint.check_survival import kept_domains, kept_machines
from treadle.planner.passes.checkpoint.decided import decided
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, OwnPiece, StatePiece, Survival
from treadle.planner.passes.checkpoint.problem import VERSION

Change = Callable[[CheckpointDecisions], CheckpointDecisions]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_planner_and_checker_agree_on_random_problems(seed: int) -> None:
    """`tests.planner.passes.checkpoint.agreement` is the same on as many as you like."""
    plan = plan_of(seed)
    assert plan is None or disagreements(plan) == []


def field(**changes: Any) -> Change:
    return lambda plan: replace(plan, **changes)


def problem(**changes: Any) -> Change:
    return lambda plan: replace(plan, problem=replace(plan.problem, **changes))


def item(name: str, number: int, **changes: Any) -> Change:
    """The plan with other fields of one piece, row of survival or policy."""

    def changed(plan: CheckpointDecisions) -> CheckpointDecisions:
        items = [*getattr(plan, name)]
        items[number] = replace(items[number], **changes)
        return replace(plan, **{name: tuple(items)})

    return changed


def without(name: str, number: int) -> Change:
    return lambda plan: replace(plan, **{name: (*getattr(plan, name)[:number], *getattr(plan, name)[number + 1 :])})


def rows(name: str, *items: Any) -> Change:
    return lambda plan: replace(plan, **{name: items})


def own(*pieces: tuple[int | None, int, int]) -> Change:
    return rows("own", *(OwnPiece(message=message, offset=offset, bytes=size) for message, offset, size in pieces))


def pieces(*sizes: tuple[int, int]) -> Change:
    """(span, bytes) of the pieces of copy 1, one after the other, with buffers in turns of two."""
    offsets = [sum(size for _, size in sizes[:number]) for number in range(len(sizes))]
    return rows(
        "pieces",
        *(
            StatePiece(span=span, copy=1, offset=offset, bytes=size, buffer=number % 2)
            for number, ((span, size), offset) in enumerate(zip(sizes, offsets, strict=True))
        ),
    )


def domains(*numbers: int) -> Change:
    return problem(domains=numbers)


ROOMY = replace(COPYING, buffer_bytes=24)
GOOD: dict[str, Callable[[], CheckpointDecisions]] = {
    "hand": by_hand,
    "copying": lambda: decided_for(COPYING),
    "ring": lambda: decided_for(COPYING, "ring"),
    "three": lambda: decided_for(replace(COPYING, copies=3)),
    "blocking": lambda: decided_for(COPYING, variant="blocking"),
    "no-pipeline": lambda: decided_for(COPYING, variant="no-pipeline"),
    "naive": lambda: decided_for(ROOMY, variant="naive"),
    "alone": lambda: decided_for(replace(COPYING, copies=1)),
    "searched": lambda: replace(decided_for(COPYING), placement="searched"),
}
LITERAL = ((0, 3), (1, 3), (2, 3), (2, 3))
"""The pieces of the printed algorithm, which takes from a span what is left to send and not what was sent."""

CORRUPTIONS: dict[str, tuple[str, Change, str]] = {
    # Who holds what
    "a machine without holders": (
        "hand", field(holders=((0, 1), (1, 0), (2, 3), (3, 4))), "holders: found 4 machines, expected 5",
    ),
    "a holder that is not there": (
        "hand", field(holders=((0, 5), (1, 0), (2, 3), (3, 4), (4, 2))), "holders[0][1]: found 5, expected below 5",
    ),
    "a state on one machine only": (
        "hand", field(holders=((0,), (1, 0), (2, 3), (3, 4), (4, 2))), "holders[0]: found 1 holders, expected 2",
    ),
    "a state not on its own machine": (
        "hand", field(holders=((1, 0), (1, 0), (2, 3), (3, 4), (4, 2))), "holders[0][0]: found 1, expected 0, the mach",
    ),
    "both copies on one machine": (
        "hand", field(holders=((0, 0), (1, 0), (2, 3), (3, 4), (4, 2))), "holders[0]: found a machine twice, expected",
    ),
    "a machine that receives two states": (
        "hand",
        field(holders=((0, 1), (1, 0), (2, 3), (3, 2), (4, 2))),
        "holders: found 2 states that machine 2 receives as copy 1, expected 1",
    ),
    "a ring that is called groups": ("ring", field(placement="groups"), "placement: found groups, expected another"),
    "groups that are called a ring": ("copying", field(placement="ring"), "placement: found ring, expected one ring o"),
    "a ring where none is needed": ("copying", field(placement="groups and ring"), "expected groups of 2 and one ring"),
    "a ring with a twist": (
        "hand",
        field(holders=((0, 1), (1, 2), (2, 3), (3, 4), (4, 0))),
        "placement: found groups and ring, expected groups of 2 and one ring of 3 machines",
    ),
    "a search that ends worse": (
        "searched",
        lambda plan: replace(decided_for(COPYING, "ring"), placement="searched"),
        "placement: found 9 sets of 2 machines are kept, expected at least 12, as with groups",
    ),
    # What is sent
    "a piece that is missing": ("hand", without("pieces", 4), "pieces: found 10 bytes, expected 12"),
    "nothing that is sent": ("hand", rows("pieces"), "pieces: found 0 bytes, expected 12"),
    "a piece sent twice": (
        "hand", lambda plan: replace(plan, pieces=(*plan.pieces, replace(plan.pieces[-1], buffer=1))),
        "pieces[5].copy: found 1, expected 2",
    ),
    "a hole": ("hand", item("pieces", 3, offset=8), "pieces[3].offset: found 8, expected 7"),
    "another copy": ("hand", item("pieces", 0, copy=2), "pieces[0].copy: found 2, expected 1"),
    "one copy too many": (
        "hand",
        lambda plan: replace(plan, pieces=(*plan.pieces, StatePiece(span=2, copy=2, offset=0, bytes=3, buffer=1))),
        "pieces[5].copy: found 2, expected at most 1",
    ),
    "a buffer out of turn": ("hand", item("pieces", 1, buffer=0), "pieces[1].buffer: found 0, expected 1"),
    "buffers without a pipeline": ("no-pipeline", item("pieces", 1, buffer=1), "pieces[1].buffer: found 1, expected 0"),
    "a piece that no buffer holds": ("hand", item("pieces", 0, bytes=4), "pieces[0].bytes: found 4, expected at most "),
    "a piece past the end of a state": ("hand", item("pieces", 4, bytes=3), "pieces[4].bytes: found 3, expected at mo"),
    "a span that is not there": ("hand", item("pieces", 4, span=3), "pieces[4].span: found 3, expected one from 1 to "),
    "spans out of order": (
        "hand", pieces((1, 3), (0, 3), (0, 3), (0, 1), (2, 2)), "pieces[1].span: found 0, expected one from 1 to 2",
    ),
    "a span too full": (
        "hand", pieces((0, 3), (0, 3), (0, 3), (1, 3)), "pieces[2].bytes: found 3, expected less, for 2 ns that are",
    ),
    "a piece that could be larger": (
        "hand", pieces((0, 3), (0, 2), (0, 1), (1, 3), (2, 3)), "pieces[1].bytes: found 2, expected more, up to 3",
    ),
    "a span left early": (
        "hand", pieces((0, 3), (0, 3), (1, 3), (2, 3)), "pieces[2].span: found 1, expected 0, which has 2 ns left",
    ),
    "the printed algorithm": ("hand", pieces(*LITERAL), "pieces[1].span: found 1, expected 0, which has 6 ns left"),
    "pieces in the last span that are too small": (
        "hand", pieces((0, 3), (0, 3), (0, 1), (1, 3), (2, 1), (2, 1)), "pieces[4].bytes: found 1, expected more, up t",
    ),
    "blocking that waits": ("blocking", item("pieces", 3, span=1), "pieces[3].span: found 1, expected 0"),
    "two pieces in one span": (
        "naive", lambda plan: replace(pieces((0, 2), (0, 1), (1, 1), (2, 8))(plan), variant="naive"),
        "pieces[1].buffer: found 1, expected 0",
    ),
    "pieces for a machine alone": (
        "alone", pieces((0, 3), (1, 3)), "pieces[0].copy: found 1, expected at most 0",
    ),
    # What is copied to the own host
    "own bytes that are missing": ("copying", without("own", 4), "own: found 10 bytes, expected 12, the whole state"),
    "own bytes twice": ("copying", item("own", 2, offset=3), "own[2].offset: found 3, expected 6"),
    "own copies after a message with room": (
        "copying", own((0, 0, 3), (1, 3, 3)), "own[1].message: found 1, expected 0, the next one with room",
    ),
    "own copies in a message that is not there": ("copying", item("own", 0, message=2), "own[0].message: found 2, exp"),
    "more own bytes than a message has time for": (
        "copying", own((0, 0, 3), (0, 3, 3), (1, 6, 3), (1, 9, 3)), "own[3].bytes: found 3, expected 1",
    ),
    "own pieces too large": ("copying", own((0, 0, 6), (1, 6, 3)), "own[0].bytes: found 6, expected 3"),
    "own copies that wait for the end": ("copying", own((None, 0, 12)), "own[0].message: found none, expected 0"),
    # What survives
    "a row of survival that is missing": ("hand", without("survival", 3), "survival: found 1 machines, 2 machines, 3 "),
    "racks that are not counted": ("copying", without("survival", 5), "expected 1 machines, 2 machines, 3 machines, 4"),
    "more sets that are kept": (
        "hand", item("survival", 1, kept=7, probability=0.7), "survival[1].kept: found 7, expected 6",
    ),
    "other sets": ("hand", item("survival", 2, sets=11), "survival[2].sets: found 11, expected 10"),
    "a probability that is not its counts": ("hand", item("survival", 1, probability=0.7), "survival[1].probability: "),
    "counts left out": ("hand", item("survival", 1, kept=None), "survival[1].kept: found nothing, expected 6"),
    "an estimate that is wrong": (
        "hand", item("survival", 1, kept=None, sets=None, probability=0.7, low=0.697, high=0.703),
        "survival[1].probability: found 0.7, expected 0.6, by less than",
    ),
    "an estimate outside of its interval": (
        "hand", item("survival", 1, kept=None, sets=None, probability=0.6, low=0.601, high=0.603),
        "survival[1].probability: found 0.6, expected a value within an interval",
    ),
    "an interval too wide": (
        "hand", item("survival", 1, kept=None, sets=None, probability=0.6, low=0.2, high=0.9),
        "survival[1].high: found 0.9, expected at most",
    ),
    "other racks": ("copying", domains(0, 1, 1, 2, 2, 0), "survival[4].kept: found 0, expected 3"),
    # What it costs
    "too little memory": ("copying", field(host_bytes=95), "host_bytes: found 95, expected 96, two versions of 2 stat"),
    "memory that is not there": ("copying", problem(host_bytes=95), "host_bytes: found 96, expected at most 95"),
    "no overflow": ("copying", field(overflow_ns=0), "overflow_ns: found 0, expected 29"),
    "a checkpoint that is done earlier": ("copying", field(checkpoint_ns=100), "checkpoint_ns: found 100, expected 12"),
    "a shorter time": ("copying", field(time_ns=101), "time_ns: found 101, expected 102"),
    "a policy left out": ("copying", without("waste", 2), "waste: found memory, persistent, expected memory, persiste"),
    "a policy without storage": ("copying", problem(persistent=None), "waste: found memory, persistent, persistent, o"),
    "checkpoints further apart": ("copying", item("waste", 0, interval_ns=5000), "waste[0].interval_ns: found 5000, e"),
    "less waste by software": ("copying", item("waste", 1, software_ns=1), "waste[1].software_ns: found 1, expected 5"),
    "less waste by hardware": (
        "copying", item("waste", 0, hardware_ns=2253), "waste[0].hardware_ns: found 2253, expected 2999",
    ),
    "a better ratio": ("copying", item("waste", 2, ratio=0.98), "waste[2].ratio: found 0.98, expected 0.97"),
    "another interval": ("copying", field(every=40), "waste[0].interval_ns: found 4129, expected 4029"),
    # Another problem than the one that was solved
    "a slower link": ("copying", problem(link_rate=10**8), "pieces[0].bytes: found 2, expected less, for 10 ns that a"),
    "a slower copy": ("copying", problem(copy_rate=10**8), "pieces[0].bytes: found 2, expected less"),
    "spans that may be filled less": ("copying", problem(fill_ppm=1), "pieces[0].bytes: found 2, expected less, for 0"),
    "more failures": ("copying", problem(failures_per_day=4e8), "waste[0].ratio: found "),
    "failures of whole racks": ("copying", problem(domain_ppm=10**6), "waste[0].hardware_ns: found 2999, expected 538"),
    "slower storage": (
        "copying", problem(persistent=replace(COPYING.persistent, rate=10**7)), "waste[1].checkpoint_ns: found 1440, e",
    ),
    "a machine that stands by": (
        "copying", problem(recovery=replace(COPYING.recovery, standby=1)), "waste[0].ratio: found 0.983784579",
    ),
    "an unsound problem": ("hand", problem(copies=6), "problem.copies: found 6, expected at most 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_the_plans_that_are_corrupted_are_good(name: str) -> None:
    assert check(GOOD[name]()) == []


def test_the_planner_decides_what_was_worked_by_hand() -> None:
    assert decided_for(PROBLEM) == by_hand()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_plan_is_refused(name: str) -> None:
    of, change, message = CORRUPTIONS[name]
    findings = check(change(GOOD[of]()))
    assert any(line.startswith("$.decisions.") and message in line for line in findings), findings


@pytest.mark.parametrize("name", ["copying", "ring", "three", "blocking", "no-pipeline", "naive"])
def test_every_number_of_every_piece_counts(name: str) -> None:
    plan = GOOD[name]()
    for list_name in ("pieces", "own"):
        for number, piece in enumerate(getattr(plan, list_name)):
            for key in piece.__struct_fields__:
                value = getattr(piece, key)
                assert check(item(list_name, number, **{key: 0 if value is None else value + 1})(plan))


def test_an_estimate_near_the_truth_passes() -> None:
    near = Survival(lost=2, of="machines", probability=0.601, low=0.598, high=0.604)
    assert check(replace(by_hand(), survival=(by_hand().survival[0], near, *by_hand().survival[2:]))) == []


def test_an_interval_that_was_given_passes_the_check_but_is_not_the_best() -> None:
    plan = GOOD["copying"]()
    given_interval = decided(plan.problem, plan.placement, plan.holders, plan.variant, 40)
    assert check(given_interval) == []
    assert [*interval_findings(given_interval)] == [("$.decisions.every", 40, "41 iterations, which cost least")]
    assert [*interval_findings(plan)] == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(1, 10**6))
def test_the_interval_is_the_first_of_all_that_cost_least(overflow: int, period: int, often: int) -> None:
    """Tried up to ten times the best one; costs are multiplied so that they are whole numbers."""
    asked = replace(COPYING, iteration_ns=1000 * period, spans=(COPYING.spans[0],), failures_per_day=often * 86_400.0)
    best = best_interval(asked, overflow)
    if best < 1000:
        costs = [2 * overflow * 10**9 + often * (every * asked.iteration_ns) ** 2 for every in range(1, 10 * best + 1)]
        scaled = [(cost, every) for every, cost in enumerate(costs, 1)]
        assert min(scaled, key=lambda each: (each[0] * 10**12 // each[1], each[1]))[1] == best


def balanced(rng: random.Random, machines: int, copies: int) -> list[tuple[int, ...]]:
    """Holders of random balanced placements: turns are rotations of machines in random orders, or groups and a ring."""
    order = rng.sample(range(machines), machines)
    steps = sorted(rng.sample(range(1, machines), copies - 1)) if copies > 1 else []
    cyclic = {order[at]: tuple(order[(at + step) % machines] for step in (0, *steps)) for at in range(machines)}
    groups = published_holders(machines, copies)
    renamed = {order[at]: tuple(order[each] for each in held) for at, held in enumerate(groups)}
    found = rng.choice((cyclic, renamed))
    return [found[machine] for machine in range(machines)]


@pytest.mark.parametrize("seed", range(40))
def test_sets_that_are_kept_are_those_of_an_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    machines = rng.randint(1, 9)
    copies = rng.randint(1, min(machines, 4))
    holders = balanced(rng, machines, copies)
    racks = [rng.randrange(4) for _ in range(machines)]

    def survives(lost: set[int]) -> bool:
        return not any(lost.issuperset(held) for held in holders)

    counted = [sum(survives({*lost}) for lost in combinations(range(machines), k)) for k in range(1, copies + 3)]
    assert kept_machines(holders) == counted[:machines]
    within = {rack: {machine for machine in range(machines) if racks[machine] == rack} for rack in racks}
    by_rack = [sum(survives(set().union(*lost)) for lost in combinations(within.values(), number)) for number in (1, 2)]
    assert kept_domains(holders, racks) == by_rack[: len(within)]


def test_the_checker_shares_only_the_words_of_problem_and_plan() -> None:
    """`lint-imports` follows imports further, but knows the planner's modules only by name."""
    for path in sorted(Path(check.__code__.co_filename).parent.glob("check*.py")):
        found = re.findall(r"^ *from treadle\.(\S+)", path.read_text(), re.MULTILINE)
        assert found
        shared = "check(_[a-z]+)?|decisions|problem"
        assert [name for name in found if not re.fullmatch(rf"planner\.passes\.checkpoint\.({shared})", name)] == []


def test_a_thousand_machines_are_checked() -> None:
    many = replace(PROBLEM, machines=1001, copies=3, domains=tuple(machine // 8 for machine in range(1001)))
    plan = decided_for(many)
    assert check(plan) == []
    worse = item("survival", 2, kept=(plan.survival[2].kept or 0) - 1)(plan)
    assert [line.split(":")[0] for line in check(worse)] == ["$.decisions.survival[2].kept"]


def test_a_problem_of_a_newer_treadle_is_refused() -> None:
    newer = replace(PROBLEM, version=VERSION + 1)
    assert [path for path, _, _ in newer.problems()] == ["$.version"]
