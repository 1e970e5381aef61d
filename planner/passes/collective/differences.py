"""How two collective plans differ: the call, the links, and the paths of the chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from treadle.planner.documents.difference import Change, abridged, fields_changed, more_and_less
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost

CALL = ("collective", "ranks", "input_bytes", "root", "demands")
FIGURES = ("chunkup", "chunk_bytes", "roots", "latency", "protocol", "instances", "ordered", "fused")

Hops = tuple[tuple[int, int, bool], ...]


def collective_differences(before: CollectiveDecisions, after: CollectiveDecisions) -> list[Change]:
    """The call first, then links, paths of chunks, and messages."""
    return [
        *fields_changed(before, after, CALL),
        *_links(before.links, after.links),
        *fields_changed(before, after, FIGURES),
        *_paths(before, after),
    ]


def _links(before: tuple[LinkCost, ...], after: tuple[LinkCost, ...]) -> Iterator[Change]:
    old, new = ({(link.src, link.dst, link.kind): link for link in links} for links in (before, after))
    yield from more_and_less("links", map(_named, old), map(_named, new), "link")
    costs = [key for key in old if key in new and old[key] != new[key]]
    if costs:
        one, other = old[costs[0]], new[costs[0]]
        how = (
            f"{len(costs)} have other costs, first {_named(costs[0])}: {one.alpha_ns} ns + {one.beta_ns} ns a chunk -> "
        )
        yield Change("links", how + f"{other.alpha_ns} ns + {other.beta_ns} ns")


def _named(link: tuple[int, int, str]) -> str:
    return f"{link[0]}->{link[1]}"


def _paths(before: CollectiveDecisions, after: CollectiveDecisions) -> Iterator[Change]:
    same = ("collective", "ranks", "chunkup", "root", "demands")
    counts = len(before.transfers), len(after.transfers)
    if counts[0] != counts[1]:
        yield Change("transfers", f"{counts[0]} -> {counts[1]}", *counts)
    if before.switched or after.switched:
        steps = len(before.switched), len(after.switched)
        others = len({*before.switched} ^ {*after.switched})
        if others:
            yield Change("switched", f"{steps[0]} -> {steps[1]} steps, {others} of them in one plan only", *steps)
        return
    if any(getattr(before, name) != getattr(after, name) for name in same):
        return
    old, new = _hops(before), _hops(after)
    other = [chunk for chunk in sorted({*old, *new}) if sorted(old[chunk]) != sorted(new[chunk])]
    for chunk in other:
        yield Change(f"chunk {chunk}", f"path {_path(new[chunk])} instead of {_path(old[chunk])}")
    moved = [chunk for chunk in sorted(old) if chunk not in other and _times(before, chunk) != _times(after, chunk)]
    if moved:
        names = abridged(list(map(str, moved)), 8)
        yield Change("times", f"{len(moved)} of {len(old)} chunks take the same paths at other times ({names})")


def _hops(decisions: CollectiveDecisions) -> dict[int, Hops]:
    """(source, destination, sum) of every transfer, by chunk, in the order of their times."""
    found: defaultdict[int, Hops] = defaultdict(tuple)
    for each in sorted(decisions.transfers, key=lambda each: (each.send_ns, each.src, each.dst)):
        found[each.chunk] += ((each.src, each.dst, each.reduce),)
    return found


def _times(decisions: CollectiveDecisions, chunk: int) -> list[tuple[int, ...]]:
    moves = (each for each in decisions.transfers if each.chunk == chunk)
    return sorted((each.src, each.dst, each.send_ns, each.arrive_ns, each.batch) for each in moves)


def _path(hops: Hops) -> str:
    """`0->1->4, 0->2`; a rank that adds what it receives has `+` before it."""
    chains: list[tuple[int, str]] = []
    for source, destination, added in hops:
        hop = f"->{'+' * added}{destination}"
        place = next((place for place, (end, _) in enumerate(chains) if end == source), None)
        if place is None:
            chains.append((destination, f"{source}{hop}"))
        else:
            chains[place] = (destination, chains[place][1] + hop)
    return abridged([text for _, text in chains], 6) or "nowhere"
