"""From a problem of aggregation to a checked plan: groups of near hosts, masters, one level or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.machine.clustering import group_count
from treadle.planner.machine.embedding import Embedded
from treadle.planner.machine.host_groups import Groups
from treadle.planner.passes.aggregation.bound import lower_bound, sentence
from treadle.planner.passes.aggregation.candidates import PricedMasters, candidate, rivals
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, Embedding, Levels
from treadle.planner.passes.aggregation.grouping import given_groups, near_grouping
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.problem import AggregationProblem
from treadle.planner.passes.aggregation.traffic import pieces
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL


@dataclass(frozen=True)
class AggregationOptions:
    """levels: the faster one if None. groups: how many; if None those that stand out, or, for two levels of hosts that
    are alike, PLink's number. given: the groups. No group is smaller than floor(hosts / (groups * elasticity))."""

    levels: Levels | None = None
    groups: int | None = None
    given: Groups | None = None
    elasticity: float = 2.0
    seed: int = 0


DEFAULTS = AggregationOptions()


def plan_aggregation(
    problem: AggregationProblem,
    *,
    options: AggregationOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[AggregationDecisions]], None] | None = None,
) -> Plan[AggregationDecisions]:
    """The fastest of one level and two levels over groups of near hosts, checked (PLink, "AggEngine").

    That takes a few seconds for hundreds of hosts, so `clock` never ends it. Raises InputError for a problem that is
    not sound, and groups or levels that its hosts do not allow.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of aggregation", path=path)
    hosts = tuple(range(len(problem.hosts)))
    if options.given is None:
        near = near_grouping(problem, options.groups, elasticity=options.elasticity, seed=options.seed)
        if options.levels == 2 and options.groups is None and len(near.groups) == 1:
            near = near_grouping(problem, group_count(len(hosts)), elasticity=options.elasticity, seed=options.seed)
    elif options.groups is None:
        near = given_groups(options.given, len(hosts))
    else:
        raise InputError("found groups and their number, expected one of them")
    if options.levels == 2 and len(near.groups) == 1:
        raise InputError("found two levels of one group, expected several groups for them")
    prices, parts = NearPrices(problem, near.groups), pieces(problem)
    levels = [(hosts,), near.groups][: len(near.groups)]
    asked = levels if options.levels is None else levels[options.levels - 1 :][:1]
    best = min((candidate(prices, groups, parts) for groups in asked), key=lambda each: each.price.time_ns)
    plan = certified(
        decided(prices, best, near.embedded),
        time_ns=best.price.time_ns,
        bound=lower_bound(prices).of_plan(best.price.time_ns),
        sentence=sentence,
        check=check,
        inputs=inputs or {},
        provenance=Provenance(tool=TOOL, method=f"groups by {near.by}, masters {best.shares}", options=asdict(options)),
    )
    if on_plan is not None:
        on_plan(plan)
    return plan


def decided(prices: NearPrices, chosen: PricedMasters, found: Embedded | None) -> AggregationDecisions:
    """The decisions that have the chosen masters, on the near groups of `prices`."""
    return AggregationDecisions(
        problem=prices.problem,
        levels=2 if len(chosen.groups) > 1 else 1,
        groups=chosen.groups,
        near=prices.near,
        chunks=chosen.chunks,
        embedding=None if found is None else Embedding(**found._asdict()),
        **chosen.price._asdict(),
        rivals=tuple(rivals(prices, [chunk.bytes for chunk in chosen.chunks])),
    )
