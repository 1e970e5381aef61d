"""A server plan as a section of the report: what every part carries, where the balance lies, and who handles what."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.passes.server.figure import KEY_COLOURS, CoreRow, chunks_svg, parts_svg
from treadle.passes.server.words import POLICIES, level_row, limit_row, workers_carried
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.server.balance import bottleneck, exchanges_per_s, limits
from treadle.planner.passes.server.decisions import CoreSlot, PartLoad, ServerDecisions
from treadle.planner.passes.server.event_order import ENGINES, followed_key, results
from treadle.report.page import Picture, Section, Table, titled

DRAWN_PARTS = 36
"""With more parts only the slowest of each kind is drawn."""
DRAWN_CORES = 40


def server_section(name: str, plan: Plan[ServerDecisions]) -> Section:
    """The section of one server plan."""
    decisions = plan.decisions
    tables = (_limits(decisions), _levels(decisions), _results(decisions), _racks(decisions), _costs(decisions))
    return Section(
        titled("Parameter server", name),
        _text(plan),
        tuple(table for table in tables if table.rows),
        (_parts(decisions), _chunks(decisions)),
    )


def _text(plan: Plan[ServerDecisions]) -> str:
    decisions = plan.decisions
    problem, chunks = decisions.problem, sum(map(len, decisions.places))
    rate = exchanges_per_s(problem.workers, decisions.time_ns)
    where = f"{many(problem.servers, 'server')} ({problem.mode})"
    levels = ", first within racks and then between them" if decisions.two_level else ""
    return (
        f"{format_bytes(problem.bytes)} in {many(len(problem.keys), 'key')} and {many(chunks, 'chunk')} of "
        f"{format_bytes(decisions.chunk_bytes)} on {where} for {many(problem.workers, 'worker')}, "
        f"{POLICIES[decisions.policy]}{levels}: an exchange of the whole model by all workers is predicted to take "
        f"{format_time(decisions.time_ns)}, {rate:.4g} exchanges/s; none takes less than "
        f"{format_time(plan.certificate.lower_bound)}. The fullest server takes "
        f"{format_bytes(decisions.server_bytes)} of memory. As planned, {workers_carried(decisions)}."
    )


def _parts(decisions: ServerDecisions) -> Picture:
    slowest = bottleneck(decisions)
    parts = [part for part in decisions.parts if part.time_ns and part.part != "computation"]
    few = "" if len(parts) <= DRAWN_PARTS else " Of parts of one kind only the slowest is drawn."
    if few:
        parts = [each.part for each in limits(decisions) if each.part in parts]
    marked = "No part takes time." if slowest is None else f"Bottleneck: {slowest.part}."
    caption = f"How long each part is busy in an exchange, with what it carries against its rate. {marked}{few}"
    return Picture(
        parts_svg(parts or [PartLoad(part="none", time_ns=0)], slowest, decisions.problem.compute_ns), caption
    )


def _chunks(decisions: ServerDecisions) -> Picture:
    """The cores of the fullest server."""
    cores = len(decisions.slots) // decisions.problem.servers
    loads = [_loads(decisions, server * cores, cores) for server in range(decisions.problem.servers)]
    server = max(range(len(loads)), key=lambda each: sum(sum(row[0]) for row in loads[each]))
    rows = [
        CoreRow(_label(decisions, slot), tuple(sizes), chunks)
        for slot, (sizes, chunks) in zip(decisions.slots[server * cores :], loads[server], strict=False)
    ]
    left = f" {DRAWN_CORES} of its {len(rows)} cores are drawn." if len(rows) > DRAWN_CORES else ""
    whose = "the server" if len(loads) == 1 else f"the fullest server ({server})"
    own = "owns" if decisions.two_level else "handles"
    caption = f"Which keys each core of {whose} {own}, by bytes; a chunk stays on its core.{left}"
    return Picture(chunks_svg(rows[:DRAWN_CORES], [name for name, _ in _coloured(decisions)]), caption)


def _coloured(decisions: ServerDecisions) -> list[tuple[str, frozenset[int]]]:
    """Names of the largest keys with their numbers, and all others as one."""
    keys = decisions.problem.keys
    ranked = sorted(range(len(keys)), key=lambda number: (-keys[number].bytes, number))
    named = [(keys[number].name, frozenset((number,))) for number in sorted(ranked[: len(KEY_COLOURS)])]
    rest = ranked[len(KEY_COLOURS) :]
    return [*named, (many(len(rest), "other key"), frozenset(rest))] if rest else named


def _loads(decisions: ServerDecisions, first: int, cores: int) -> list[tuple[list[int], int]]:
    """For each core from slot `first` on its bytes by colour, and its chunks."""
    colours = {number: place for place, (_, own) in enumerate(_coloured(decisions)) for number in own}
    found = [([0] * len(set(colours.values())), 0) for _ in range(cores)]
    for number, (key, places) in enumerate(zip(decisions.problem.keys, decisions.places, strict=True)):
        left = key.bytes
        for slot in places:
            size = min(decisions.chunk_bytes, left)
            left -= size
            if first <= slot < first + cores:
                sizes, chunks = found[slot - first]
                sizes[colours[number]] += size
                found[slot - first] = (sizes, chunks + 1)
    return found


def _label(decisions: ServerDecisions, slot: CoreSlot) -> str:
    card = "" if slot.interface is None else f"{decisions.problem.machine.interfaces[slot.interface].name}, "
    return f"{card}core {slot.domain}.{slot.core}"


def _limits(decisions: ServerDecisions) -> Table:
    head = ("kind", "slowest part", "carries", "rate", "busy", "exchanges/s", "headroom")
    caption = "Exchanges per second of all workers that each kind of part allows; headroom is a multiple of the plan's."
    return Table(head, tuple(map(limit_row, limits(decisions))), caption)


def _levels(decisions: ServerDecisions) -> Table:
    head = ("level", "bins", "fullest", "of the mean", "guarantee", "proof")
    rows = tuple(level_row(load, decisions.problem.machine) for load in decisions.levels)
    caption = (
        "How evenly bytes are spread, where each level is least even. Longest-processing-time-first is within the "
        "guarantee of the best spread of equal bins."
    )
    return Table(head, rows, caption)


def _results(decisions: ServerDecisions) -> Table:
    """When results of the first key leave, by engine."""
    name, chunks = followed_key(decisions) or ("", [])
    rows = []
    for engine in ENGINES if chunks else ():
        found = results(engine, chunks, len(decisions.slots))
        planned = "planned" if engine == decisions.engine else ""
        rows.append((engine, format_time(found.first), format_time(found.last), planned))
    caption = f"When the first and the last chunk of {name} are new, from the arrival of its first byte on, by engine."
    return Table(("engine", "first result", "last result", ""), tuple(rows), caption)


def _racks(decisions: ServerDecisions) -> Table:
    sides, rows = decisions.racks, tuple[tuple[str, ...], ...]()
    if sides is not None:
        chosen = ("", "chosen") if decisions.two_level else ("chosen", "")
        rows = (
            ("shards in all racks", f"{sides.flat:.6g}", chosen[0]),
            ("each rack, then between racks", f"{sides.two_level:.6g}", chosen[1]),
        )
    caption = "Both sides of the choice between one level and two, per MiB of the model in one direction."
    return Table(("levels", "ns for a MiB", ""), rows, caption)


def _costs(decisions: ServerDecisions) -> Table:
    return Table(
        ("network", "throughput per 1000", "compared"), tuple(_cost_rows(decisions)), "Throughput for the money."
    )


def _cost_rows(decisions: ServerDecisions) -> Iterator[tuple[str, ...]]:
    costs, prices = decisions.costs, decisions.problem.prices
    if costs is None or prices is None:
        return
    yield f"workers share gradients out, {prices.currency}", f"{costs.baseline:.4g}", ""
    yield (
        f"a server in each rack, {prices.currency}",
        f"{costs.served:.4g}",
        f"{costs.served / costs.baseline - 1:+.1%}",
    )
