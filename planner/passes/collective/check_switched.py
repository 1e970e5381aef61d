"""The independent check of collectives done by switches: it replays every step, from the plan only.

A step takes alpha, and before that an equal share of the rate of the ports that it passes: `beta_ns` of port time over
`end_ns - alpha - start_ns`. Shares through one port in one direction never add up to more than the whole. A step reads
and writes in all of [start, end): of the steps of one chunk, those with a member in common are apart. What a rank holds
of a chunk is the set of ranks whose contributions are in it, as bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction

from treadle.planner.passes.collective.algorithm import CollectiveDecisions, SwitchCost, SwitchStep
from treadle.planner.passes.collective.collectives import form_of

LATEST = 2**62


def switched_findings(decisions: CollectiveDecisions) -> list[str]:
    """What is wrong with the steps of switches: their form, the load of ports, values and times."""
    found = list(_form(decisions))
    if found:
        return found
    switches = {switch.name: switch for switch in decisions.switches}
    return [
        *(finding for switch in decisions.switches for finding in _ports(decisions, switch)),
        *_overlaps(decisions, switches),
        *_replay(decisions, switches),
    ]


def _spot(index: int, step: SwitchStep) -> str:
    return f"switched[{index}] (chunk {step.chunk}, {step.op} by {step.rank})"


def _form(d: CollectiveDecisions) -> Iterator[str]:
    if d.transfers:
        yield f"switched: found {len(d.switched)} steps and {len(d.transfers)} transfers, expected only one kind"
    if d.instances != 1 or d.protocol != "Simple":
        yield f"switched: found {d.protocol} x {d.instances}, expected Simple x 1: a switch knows no other"
    names = Counter(switch.name for switch in d.switches)
    for name, count in names.items():
        if count > 1:
            yield f"switches: {name} {count} times"
    switches = {switch.name: switch for switch in d.switches}
    for switch in d.switches:
        if switch.alpha_ns + switch.beta_ns < 1:
            yield f"switches ({switch.name}): a switch that costs nothing"
    count = len(form_of(d).before)
    for index, step in enumerate(d.switched):
        spot, known = _spot(index, step), switches.get(step.switch)
        if known is None:
            yield f"{spot}: no switch {step.switch}"
            continue
        if step.op not in known.in_network:
            yield f"{spot}: switch {step.switch} does not {step.op}"
        if step.rank not in known.members:
            yield f"{spot}: rank {step.rank} is not on switch {step.switch}"
        if step.chunk >= count:
            yield f"{spot}: found chunk {step.chunk}, expected one below {count}"
        took, least = step.end_ns - step.start_ns, known.alpha_ns + known.beta_ns
        if took < least:
            yield f"{spot}: takes {took} ns, expected at least {least} = {known.alpha_ns} + {known.beta_ns}"
        if step.end_ns > LATEST:
            yield f"{spot}: ends after 2^62 ns"


def _ports(d: CollectiveDecisions, switch: SwitchCost) -> Iterator[str]:
    """The first time at which the ports of `switch` carry more than their rate, in each direction."""
    events: list[tuple[int, bool, int, SwitchStep, Fraction]] = []
    for index, step in enumerate(d.switched):
        if step.switch == switch.name and switch.beta_ns:
            until = step.end_ns - switch.alpha_ns
            share = Fraction(switch.beta_ns, until - step.start_ns)
            events += [(step.start_ns, True, index, step, share), (until, False, index, step, share)]
    events.sort(key=lambda event: event[:3])
    # A reduction passes all out-ports and one in-port, a multicast all in-ports and one out-port.
    every = {"out": Fraction(0), "in": Fraction(0)}
    alone: dict[str, defaultdict[int, Fraction]] = {"out": defaultdict(Fraction), "in": defaultdict(Fraction)}
    over: set[str] = set()
    for time, begins, index, step, share in events:
        wide, narrow = ("out", "in") if step.op == "reduce" else ("in", "out")
        every[wide] += share if begins else -share
        alone[narrow][step.rank] += share if begins else -share
        for side, ranks in ((wide, alone[wide]), (narrow, {step.rank: alone[narrow][step.rank]})):
            busiest = max(ranks, key=lambda rank: ranks[rank], default=step.rank)
            load = every[side] + ranks.get(busiest, Fraction(0))
            if begins and load > 1 and side not in over:
                over.add(side)
                yield (
                    f"port {switch.name} rank {busiest} {side}: more than its rate, {float(load):.4g} times as much "
                    f"at {time} ns from {_spot(index, step)} on"
                )


def _overlaps(d: CollectiveDecisions, switches: dict[str, SwitchCost]) -> Iterator[str]:
    by_chunk: defaultdict[int, list[tuple[int, SwitchStep]]] = defaultdict(list)
    for index, step in enumerate(d.switched):
        by_chunk[step.chunk].append((index, step))
    for chunk, steps in sorted(by_chunk.items()):
        steps.sort(key=lambda entry: (entry[1].start_ns, entry[1].end_ns, entry[0]))
        latest: dict[int, tuple[int, SwitchStep]] = {}
        for index, step in steps:
            for member in switches[step.switch].members:
                before = latest.get(member)
                if before is not None and step.start_ns < before[1].end_ns:
                    yield (
                        f"chunk {chunk} at rank {member}: switched[{before[0]}] and switched[{index}] are at it at "
                        f"once, [{before[1].start_ns}, {before[1].end_ns}) and [{step.start_ns}, {step.end_ns})"
                    )
                    break
            for member in switches[step.switch].members:
                if member not in latest or latest[member][1].end_ns < step.end_ns:
                    latest[member] = index, step


def _replay(d: CollectiveDecisions, switches: dict[str, SwitchCost]) -> Iterator[str]:
    """In the order of their starts: those of one place are apart, so each finds what the others before it left."""
    asked = form_of(d)
    whole = [sum(1 << rank for rank in group) if asked.reducing else 1 for group in asked.before]
    holds = {
        (chunk, rank): 1 << rank if asked.reducing else 1 for chunk, group in enumerate(asked.before) for rank in group
    }
    order = sorted(range(len(d.switched)), key=lambda index: (d.switched[index].start_ns, index))
    for index in order:
        step = d.switched[index]
        spot, members = _spot(index, step), switches[step.switch].members
        if step.op == "reduce":
            total = 0
            for member in members:
                load = holds.get((step.chunk, member), 0)
                if not load:
                    yield f"{spot}: starts at {step.start_ns}, before rank {member} holds chunk {step.chunk}"
                if load & total:
                    yield f"{spot}: adds the contributions of {_ranks(load & total)} a second time"
                total |= load
            if not asked.reducing:
                yield f"{spot}: reduces in {d.collective}, which adds nothing up"
            holds[step.chunk, step.rank] = total
            continue
        load = holds.get((step.chunk, step.rank), 0)
        if not load:
            yield f"{spot}: starts at {step.start_ns}, before rank {step.rank} holds chunk {step.chunk}"
        elif load != whole[step.chunk]:
            missing = _ranks(whole[step.chunk] & ~load)
            yield f"{spot}: sent on as final without the contributions of {missing}"
        for member in members:
            if member != step.rank and holds.get((step.chunk, member), 0) == whole[step.chunk]:
                yield f"{spot}: rank {member} holds chunk {step.chunk} already"
            holds[step.chunk, member] = load
    for chunk, group in enumerate(asked.after):
        for rank in sorted(group):
            missed = whole[chunk] & ~holds.get((chunk, rank), 0)
            if missed:
                what = f"lacks the contributions of {_ranks(missed)}" if asked.reducing else "never arrives"
                yield f"postcondition: chunk {chunk} at rank {rank} {what}"


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
