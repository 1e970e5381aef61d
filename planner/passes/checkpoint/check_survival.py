"""How likely a copy of every state is left, counted again for the checker, exactly and for any placement.

Each fatal set of lost machines counts once, at the first holder set, in some order, that it contains. Sets have at most
two machines more than there are copies. Of those that contain a holder set the ones are taken off in which one or two
more machines complete an earlier holder set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import comb, sqrt

from treadle.planner.passes.checkpoint.check_placement import Finding, Held, published_holders
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, Survival

EXACT_BELOW = 2**53
"""Numbers of sets from here on are not in a plan."""
SAMPLES = 200_000
DEVIATIONS = 6
"""By how many standard deviations an estimate may differ from the truth."""
ROUNDING = 1e-12


def survival_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """What is missing, what was not counted right, and a search that ends worse than it began."""
    problem, path = decisions.problem, "$.decisions.survival"
    machines = kept_machines(decisions.holders)
    rows = [("machines", lost, kept, comb(problem.machines, lost)) for lost, kept in enumerate(machines, 1)]
    domains = kept_domains(decisions.holders, problem.domains)
    rows += [("domains", lost, kept, comb(len(set(problem.domains)), lost)) for lost, kept in enumerate(domains, 1)]
    stated = [(each.of, each.lost) for each in decisions.survival]
    if stated != [(of, lost) for of, lost, _, _ in rows]:
        found = ", ".join(f"{lost} {of}" for of, lost in stated)
        yield path, found or "nothing", ", ".join(f"{lost} {of}" for of, lost, _, _ in rows)
        return
    for place, (each, (_, _, kept, sets)) in enumerate(zip(decisions.survival, rows, strict=True)):
        wrong = (
            _estimated(each, kept, sets)
            if each.low is not None or each.high is not None
            else _counted(each, kept, sets)
        )
        for name, seen, expected in wrong:
            yield f"{path}[{place}].{name}", seen, expected
    if decisions.placement == "searched":
        yield from _worse(decisions, domains, machines)


def kept_machines(holders: Held) -> list[int]:
    """How many sets of 1, 2, ... lost machines, up to two more than there are copies, leave a holder of every state."""
    count, copies = len(holders), len(holders[0])
    fatal = [0] * (copies + 3)
    within: dict[int, set[int]] = defaultdict(set)
    distinct = sorted({frozenset(held) for held in holders}, key=sorted)
    for number, held in enumerate(distinct):
        touching = set().union(*(within[machine] for machine in held))
        rests = [distinct[earlier] - held for earlier in touching]
        single = {machine for rest in rests if len(rest) == 1 for machine in rest}
        pairs = len({rest for rest in rests if len(rest) == 2 and not rest & single})
        others = number - len(touching)  # earlier holder sets that are disjoint from this one
        completing = len(single)
        if copies == 1:
            completing += others
        elif copies == 2:
            pairs += others - len(set().union(*(within[machine] for machine in single)) - touching)
        free = count - copies - completing
        fatal[copies] += 1
        fatal[copies + 1] += free
        fatal[copies + 2] += comb(free, 2) - pairs
        for machine in held:
            within[machine].add(number)
    return [comb(count, lost) - fatal[lost] for lost in range(1, min(count, copies + 2) + 1)]


def kept_domains(holders: Held, domains: Sequence[int]) -> list[int]:
    """How many failure domains, and how many pairs of them, may be lost; nothing without domains."""
    if not domains:
        return []
    spans = [{domains[holder] for holder in held} for held in holders]
    fatal = {domain for span in spans if len(span) == 1 for domain in span}
    left = {*domains} - fatal
    partners: dict[int, set[int]] = defaultdict(set)
    for span in spans:
        for domain in span if len(span) == 2 and span <= left else ():
            partners[domain] |= span - {domain}
    pairs = sum(len(left) - 1 - len(partners[domain]) for domain in left) // 2
    return [len(left), pairs][: len({*domains})]


def _counted(stated: Survival, kept: int, sets: int) -> Iterator[Finding]:
    small = sets < EXACT_BELOW
    for name, right in (("kept", kept), ("sets", sets)):
        if getattr(stated, name) != (right if small else None):
            seen = getattr(stated, name)
            yield name, "nothing" if seen is None else seen, right if small else f"none of {EXACT_BELOW} and more"
    if abs(stated.probability - kept / sets) > ROUNDING:
        yield "probability", stated.probability, kept / sets


def _estimated(stated: Survival, kept: int, sets: int) -> Iterator[Finding]:
    """Whether the truth may look like this in as many samples."""
    low, found, high, truth = stated.low, stated.probability, stated.high, kept / sets
    if stated.kept is not None or stated.sets is not None:
        yield "kept", "a count", "none with an interval"
    if low is None or high is None or not low <= found <= high <= 1:
        yield "probability", found, "a value within an interval from `low` to `high`"
        return
    allowed = DEVIATIONS * sqrt(truth * (1 - truth) / SAMPLES) + DEVIATIONS / SAMPLES
    if abs(found - truth) > allowed:
        yield "probability", found, f"{truth:.9g}, by less than {allowed:.2g}"
    if high - low > 2 * (allowed + DEVIATIONS / SAMPLES):
        yield "high", high, f"at most {low + 2 * allowed:.9g}, which {SAMPLES} samples are good for"


def _worse(decisions: CheckpointDecisions, domains: list[int], machines: list[int]) -> Iterator[Finding]:
    """A search begins with groups and a ring."""
    problem = decisions.problem
    published = published_holders(problem.machines, problem.copies)
    first = [*kept_domains(published, problem.domains), *kept_machines(published)]
    for place, (kept, before) in enumerate(zip([*domains, *machines], first, strict=True)):
        if kept > before:
            return
        if kept < before:
            lost = f"{place + 1} domains" if place < len(domains) else f"{place - len(domains) + 1} machines"
            yield "$.decisions.placement", f"{kept} sets of {lost} are kept", f"at least {before}, as with groups"
            return
