"""The independent checker of collective plans: it replays every transfer, from the plan only.

It shares no code with the methods that make plans. Intervals are half open: a link, a port or a sum is busy in
[send, arrive) and free again at arrive; with pipelined latency links and ports are free again alpha before that. A
port with a beta of its own, an uplink, is busy for that beta times the chunks of the message, from its send on. A
message carries what its sender holds when it leaves; a sum may be in flight to the sender meanwhile (an exchange), if
it is added only when the message has arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.hardware import TEARING, Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, SwitchCost, Transfer
from treadle.planner.passes.collective.check_switched import switched_findings
from treadle.planner.passes.collective.collectives import DEMANDING, ROOTED, form_of

Ints = NDArray[np.int64]
Message = tuple[int, int, int, int]
"""(send, until, link or source, first transfer)"""

EVENTS_AT_ONCE = 2**18
"""Departures and arrivals turned into Python numbers at a time."""


def check(decisions: CollectiveDecisions) -> list[str]:
    """Everything wrong with the plan, each finding naming its spot; an empty list accepts it.

    Checks: chunk numbers and sizes; links exist; arrival = send + alpha + beta * batch size; batches; one message at a
    time on each link; one peer at a time on each port; nothing is sent before it is held; contributions are added
    exactly once, one at a time for each chunk and rank; every rank ends with what the collective promises; makespan, of
    the last arrival and not above that of the ordering (T3 <= T2); every link that is used carries the protocol. What
    switches do is checked by `check_switched`.
    """
    found = list(_shape(decisions))
    if found:
        return found
    if decisions.switched:
        found += switched_findings(decisions)
        latest = max(step.end_ns for step in decisions.switched)
        last = f"the last step ends at {latest}"
    else:
        table = _Table.of(decisions)
        messages, problems = _messages(decisions, table)
        found += problems
        found += _overlaps_on_links(decisions, messages)
        found += _overlaps_on_ports(decisions, messages)
        found += _replay(decisions, table)
        found += _torn(decisions)
        latest = max((move.arrive_ns for move in decisions.transfers), default=0)
        last = f"the last transfer arrives at {latest}"
    if latest != decisions.makespan_ns:
        found.append(f"makespan_ns: found {decisions.makespan_ns}, {last}")
    if decisions.ordering_ns is not None and decisions.ordering_ns < decisions.makespan_ns:
        found.append(f"ordering_ns: found {decisions.ordering_ns}, expected at least the makespan {latest}")
    return found


def _torn(decisions: CollectiveDecisions) -> Iterator[str]:
    if decisions.protocol == "LL128":
        used = {(move.src, move.dst) for move in decisions.transfers}
        for link in decisions.links:
            if link.kind in TEARING and (link.src, link.dst) in used:
                yield (
                    f"protocol: found LL128 over {link.kind} link {link.src} -> {link.dst}, expected Simple or LL: its "
                    "128-byte stores may arrive in parts"
                )
                return


def check_against_inputs(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch) -> list[str]:
    """Whether links, ports, costs and chunks are still those that these inputs give; findings name each difference.

    Raises InputError when the inputs do not fit together any more.
    """
    from treadle.planner.passes.collective.problem import build_problem

    problem = build_problem(
        decisions.collective,
        hardware,
        sketch,
        size_bytes=decisions.input_bytes,
        root=decisions.root or 0,
        chunkup=decisions.chunkup,
        roots=decisions.roots,
        demands=decisions.demands,
        restricted=False,
    )
    found = []
    for field in ("ranks", "chunk_bytes", "latency"):
        here, there = getattr(decisions, field), getattr(problem, field)
        if here != there:
            found.append(f"{field}: found {here}, the inputs give {there}")
    here_links = {(link.src, link.dst): link for link in decisions.links}
    for edge in sorted(here_links.keys() | problem.links.keys()):
        now, then = here_links.get(edge), problem.links.get(edge)
        name = f"link {edge[0]} -> {edge[1]}"
        if now is None or then is None:
            found.append(f"{name}: {'missing in the plan' if now is None else 'not among those the inputs give'}")
        elif now != then:
            found.append(
                f"{name}: found {now.kind} {now.alpha_ns} + {now.beta_ns} ns, the inputs give {then.kind} "
                f"{then.alpha_ns} + {then.beta_ns} ns"
            )
    here_ports = {frozenset(port.links): port.name for port in decisions.ports}
    there_ports = {frozenset(port.links): port.name for port in problem.ports}
    found += [
        f"port {here_ports[key]}: not among those the inputs give" for key in here_ports if key not in there_ports
    ]
    found += [f"port {there_ports[key]}: missing in the plan" for key in there_ports if key not in here_ports]
    then_own = {frozenset(port.links): port.beta_ns for port in problem.ports}
    found += [
        f"port {port.name}: found {port.beta_ns} ns for a chunk, the inputs give {then_own[frozenset(port.links)]}"
        for port in decisions.ports
        if then_own.get(frozenset(port.links), port.beta_ns) != port.beta_ns
    ]
    found += _switch_differences(decisions, problem.switches)
    batching = problem.batching
    for link, batch, size in _batch_sizes(decisions):
        if size > 1 and (link not in batching.links or size > batching.max_run):
            found.append(
                f"link {link[0]} -> {link[1]}: batch {batch} of {size} chunks, which the sketch does not allow"
            )
    return found


def _switch_differences(decisions: CollectiveDecisions, given: tuple[SwitchCost, ...]) -> Iterator[str]:
    named = {switch.name: switch for switch in given}
    for switch in decisions.switches:
        now = named.get(switch.name)
        if now is None:
            yield f"switch {switch.name}: not among those the inputs give"
        elif now != switch:
            for field in ("members", "in_network", "alpha_ns", "beta_ns"):
                here, there = getattr(switch, field), getattr(now, field)
                if here != there:
                    yield f"switch {switch.name}, {field}: found {here}, the inputs give {there}"


def _batch_sizes(decisions: CollectiveDecisions) -> list[tuple[tuple[int, int], int, int]]:
    sizes: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
    for move in decisions.transfers:
        sizes[(move.src, move.dst), move.batch] += 1
    return [(link, batch, size) for (link, batch), size in sorted(sizes.items())]


def _spot(index: int, move: Transfer) -> str:
    return f"transfers[{index}] (chunk {move.chunk}, {move.src} -> {move.dst})"


def _shape(d: CollectiveDecisions) -> Iterator[str]:
    links: set[tuple[int, int]] = set()
    for index, link in enumerate(d.links):
        if max(link.src, link.dst) >= d.ranks or link.src == link.dst:
            yield f"links[{index}]: found {link.src} -> {link.dst}, expected two different ranks below {d.ranks}"
        if (link.src, link.dst) in links:
            yield f"links[{index}]: a second link {link.src} -> {link.dst}"
        if link.alpha_ns + link.beta_ns < 1:
            yield f"links[{index}] ({link.src} -> {link.dst}): a link that costs nothing"
        links.add((link.src, link.dst))
    costs = {(link.src, link.dst): link.beta_ns for link in d.links}
    for index, port in enumerate(d.ports):
        for edge in port.links:
            if edge not in links:
                yield f"ports[{index}] ({port.name}): no link {edge[0]} -> {edge[1]}"
            elif port.beta_ns is not None and costs[edge] < port.beta_ns:
                yield (
                    f"ports[{index}] ({port.name}): a chunk holds it for {port.beta_ns} ns, link {edge[0]} -> "
                    f"{edge[1]} for {costs[edge]} ns only"
                )
    rooted = d.collective in ROOTED
    if rooted and (d.root is None or d.root >= d.ranks):
        yield f"root: found {d.root}, expected a rank below {d.ranks}"
        return
    if not rooted and d.root is not None:
        yield f"root: found {d.root}, expected none for {d.collective}"
    if d.roots is not None and (d.collective != "allreduce" or not d.roots or max(d.roots) >= d.ranks):
        yield f"roots: expected none but for an allreduce, and ranks below {d.ranks}"
        return
    if (d.demands is None) == (d.collective in DEMANDING):
        yield f"demands: found {'none' if d.demands is None else 'some'}, {d.collective} wants the opposite"
        return
    for index, demand in enumerate(d.demands or ()):
        if not demand.sources or not demand.targets or max(*demand.sources, *demand.targets) >= d.ranks:
            yield f"demands[{index}]: expected sources and targets among the ranks below {d.ranks}"
            return
    asked = form_of(d)
    held: Counter[int] = Counter()
    for ranks, times in Counter(asked.before).items():
        held.update(dict.fromkeys(ranks, times))
    cuts = max(held.values(), default=1)
    if d.chunk_bytes != -(-d.input_bytes // cuts):
        due = -(-d.input_bytes // cuts)
        yield f"chunk_bytes: found {d.chunk_bytes}, {d.input_bytes} bytes in {cuts} pieces give {due}"
    count = len(asked.before)
    table = _Table.of(d)
    known = np.sort(np.array([src * d.ranks + dst for src, dst in links], dtype=np.int64))
    inside = (table.src < d.ranks) & (table.dst < d.ranks)
    at = np.searchsorted(known, table.link)
    linked = inside & (np.append(known, -1)[at] == table.link)
    for index in np.flatnonzero((table.chunk >= count) | ~linked | (table.arrive <= table.send)).tolist():
        move = d.transfers[index]
        if move.chunk >= count:
            yield f"{_spot(index, move)}: found chunk {move.chunk}, expected one below {count}"
        if (move.src, move.dst) not in links:
            yield f"{_spot(index, move)}: no link {move.src} -> {move.dst}"
        if move.arrive_ns <= move.send_ns:
            yield f"{_spot(index, move)}: arrives at {move.arrive_ns}, sent at {move.send_ns}"
    slowest = max((link.alpha_ns + link.beta_ns * len(d.transfers) for link in d.links), default=0)
    if max((move.send_ns for move in d.transfers), default=0) + slowest >= 2**62:
        yield "transfers: found times that may pass 2^62 ns, expected less"


@dataclass(frozen=True)
class _Table:
    """The transfers by column, in the order of the plan. `link` is src * ranks + dst."""

    chunk: Ints
    src: Ints
    dst: Ints
    send: Ints
    arrive: Ints
    batch: Ints
    reduce: Ints
    link: Ints

    @staticmethod
    def of(d: CollectiveDecisions) -> _Table:
        def column(field: str) -> Ints:
            return np.fromiter(map(attrgetter(field), d.transfers), dtype=np.int64, count=len(d.transfers))

        src, dst = column("src"), column("dst")
        return _Table(
            column("chunk"),
            src,
            dst,
            column("send_ns"),
            column("arrive_ns"),
            column("batch"),
            column("reduce"),
            src * d.ranks + dst,
        )


@dataclass(frozen=True)
class _Messages:
    """Transfers of one link and batch, by (link, batch): when they hold the link, the first of them, how many."""

    send: Ints
    until: Ints
    link: Ints
    first: Ints
    size: Ints

    def listed(self, rows: Ints) -> list[Message]:
        columns = (column[rows].tolist() for column in (self.send, self.until, self.link, self.first))
        return list(zip(*columns, strict=True))


def _messages(d: CollectiveDecisions, table: _Table) -> tuple[_Messages, list[str]]:
    order = np.lexsort((table.batch, table.link))
    link, batch = table.link[order], table.batch[order]
    starts = np.flatnonzero(np.append(True, (link[1:] != link[:-1]) | (batch[1:] != batch[:-1]))[: len(order)])
    if not len(starts):
        return _Messages(starts, starts, starts, starts, starts), []
    sizes = np.diff(np.append(starts, len(order)))
    costs = sorted((cost.src * d.ranks + cost.dst, cost.alpha_ns, cost.beta_ns) for cost in d.links)
    codes, alphas, betas = np.array(costs, dtype=np.int64).T
    which = np.searchsorted(codes, link[starts])
    first = order[starts]
    send, alpha = table.send[first], alphas[which]
    due = send + alpha + betas[which] * sizes
    leader = np.repeat(np.arange(len(starts)), sizes)
    wrong = (
        (table.send[order] != send[leader])
        | (table.arrive[order] != due[leader])
        | (table.reduce[order] != table.reduce[first][leader])
    )
    found = []
    for row in np.flatnonzero(wrong):
        group, index = leader[row], int(order[row])
        move, start = d.transfers[index], d.transfers[first[group]]
        if move.send_ns != start.send_ns:
            found.append(
                f"{_spot(index, move)}: sent at {move.send_ns}, its batch {move.batch} leaves at {start.send_ns}"
            )
        elif move.arrive_ns != due[group]:
            found.append(
                f"{_spot(index, move)}: arrives at {move.arrive_ns}, expected {due[group]} = {move.send_ns} + "
                f"{alpha[group]} + {sizes[group]} * {betas[which[group]]}"
            )
        if move.reduce != start.reduce:
            found.append(f"{_spot(index, move)}: reduces, unlike others of its batch {move.batch}")
    arrive = np.maximum.reduceat(table.arrive[order], starts)
    return _Messages(send, arrive if d.latency == "serial" else arrive - alpha, link[starts], first, sizes), found


def _overlaps(messages: Iterable[Message]) -> Iterator[tuple[Message, Message]]:
    """Pairs of messages that hold something at once, for messages by (send, until, link)."""
    latest: Message | None = None
    for message in messages:
        if latest is not None and message[0] < latest[1]:
            yield latest, message
        if latest is None or message[1] > latest[1]:
            latest = message


def _crowded(group: Ints, send: Ints, until: Ints, link: Ints) -> Iterator[tuple[int, Ints]]:
    """The groups of intervals among which some overlap, with their rows by (send, until, link).

    By send time, intervals are apart exactly if each is apart from the next.
    """
    order = np.lexsort((link, until, send, group))
    groups = group[order]
    hit = (groups[1:] == groups[:-1]) & (send[order[1:]] < until[order[:-1]])
    for number in np.unique(groups[1:][hit]).tolist():
        begin, end = np.searchsorted(groups, [number, number + 1])
        yield number, order[begin:end]


def _overlaps_on_links(d: CollectiveDecisions, messages: _Messages) -> Iterator[str]:
    for code, rows in _crowded(messages.link, messages.send, messages.until, messages.link):
        src, dst = divmod(code, d.ranks)
        for one, other in _overlaps(messages.listed(rows)):
            yield (
                f"link {src} -> {dst}: transfers[{one[3]}] and transfers[{other[3]}] overlap, "
                f"[{one[0]}, {one[1]}) and [{other[0]}, {other[1]})"
            )


def _overlaps_on_ports(d: CollectiveDecisions, messages: _Messages) -> Iterator[str]:
    pairs = sorted({(number, src * d.ranks + dst) for number, port in enumerate(d.ports) for src, dst in port.links})
    if not pairs or not len(messages.link):
        return
    ports, links = np.array(pairs, dtype=np.int64).T
    # Messages are sorted by link: those of a port's link are a range of them.
    begin, end = np.searchsorted(messages.link, links), np.searchsorted(messages.link, links, side="right")
    sizes = end - begin
    rows = np.arange(sizes.sum()) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)
    group = np.repeat(ports, sizes)
    own = np.array([-1 if port.beta_ns is None else port.beta_ns for port in d.ports], dtype=np.int64)[group]
    send = messages.send[rows]
    until = np.where(own < 0, messages.until[rows], send + own * messages.size[rows])
    for number, members in _crowded(group, send, until, messages.link[rows]):
        columns = (column[members].tolist() for column in (send, until, messages.link[rows], messages.first[rows]))
        for one, other in _overlaps(zip(*columns, strict=True)):
            if one[2] != other[2]:
                here, there = divmod(one[2], d.ranks), divmod(other[2], d.ranks)
                what = "two peers at once" if d.ports[number].beta_ns is None else "more than its rate"
                yield (
                    f"port {d.ports[number].name}: {what}, transfers[{one[3]}] on {here[0]} -> {here[1]} "
                    f"and transfers[{other[3]}] on {there[0]} -> {there[1]}"
                )


def _replay(d: CollectiveDecisions, table: _Table) -> Iterator[str]:
    """Follow the data. What a rank holds of a chunk is the set of ranks whose contributions are in it, as bits."""
    asked = form_of(d)
    ranks = d.ranks
    reducing = asked.reducing
    bits = {group: sum(1 << rank for rank in group) for group in {*asked.before}}
    whole = [bits[group] if reducing else 1 for group in asked.before]
    alone = [1 << rank if reducing else 1 for rank in range(ranks)]
    holds = {chunk * ranks + rank: alone[rank] for chunk, group in enumerate(asked.before) for rank in group}
    sources, targets = table.chunk * ranks + table.src, table.chunk * ranks + table.dst
    writers = _writers(targets)
    disturbed = _disturbed(table, sources, targets)

    carried: dict[int, int] = {}
    for sending, index, chunk, source, target, reduce in _events(table, sources, targets):
        if sending:
            carried[index] = load = holds.get(source, 0)
            if not load or index in disturbed or (reduce and not reducing) or (load != whole[chunk] and not reduce):
                yield from _bad_send(d, index, load, whole[chunk], reducing, writers(source))
            continue
        mine, load = holds.get(target, 0), carried.pop(index)
        if reduce:
            if mine & load:
                again = _ranks(mine & load)
                yield f"{_spot(index, d.transfers[index])}: adds the contributions of {again} a second time"
        elif mine == whole[chunk]:
            move = d.transfers[index]
            yield f"{_spot(index, move)}: rank {move.dst} holds chunk {chunk} already"
        holds[target] = mine | load

    for place, rows in _crowded(targets, table.send, table.arrive, table.src):
        chunk, rank = divmod(place, ranks)
        moves = [(d.transfers[i].send_ns, d.transfers[i].arrive_ns, d.transfers[i].src, int(i)) for i in rows]
        for one, other in _overlaps(moves):
            yield (
                f"chunk {chunk} at rank {rank}: transfers from {one[2]} and {other[2]} arrive at the same time, "
                f"[{one[0]}, {one[1]}) and [{other[0]}, {other[1]})"
            )
    for chunk, group in enumerate(asked.after):
        due, base = whole[chunk], chunk * ranks
        if all(holds.get(base + rank, 0) & due == due for rank in group):
            continue
        for rank in sorted(group):
            missed = due & ~holds.get(base + rank, 0)
            if missed:
                what = f"lacks the contributions of {_ranks(missed)}" if reducing else "never arrives"
                yield f"postcondition: chunk {chunk} at rank {rank} {what}"


def _events(table: _Table, sources: Ints, targets: Ints) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(sends, transfer, chunk, place left, place reached, reduces) by time; at equal times arrivals come first, so
    that what arrives at t may be sent on at t."""
    count = len(table.send)
    kind = np.repeat([0, 1], count)
    order = np.lexsort((np.tile(np.arange(count), 2), kind, np.concatenate([table.arrive, table.send])))
    for begin in range(0, len(order), EVENTS_AT_ONCE):
        rows = order[begin : begin + EVENTS_AT_ONCE]
        index = rows % max(count, 1)
        columns = (kind[rows], index, table.chunk[index], sources[index], targets[index], table.reduce[index])
        yield from zip(*(column.tolist() for column in columns), strict=True)


def _writers(targets: Ints) -> Callable[[int], Ints]:
    """A function that gives the transfers that reach a place, in the order of the plan."""
    order = np.argsort(targets, kind="stable")
    by_place = targets[order]

    def found(place: int) -> Ints:
        begin, end = np.searchsorted(by_place, [place, place + 1])
        return order[begin:end]

    return found


def _disturbed(table: _Table, sources: Ints, targets: Ints) -> set[int]:
    """The transfers during which another one writes what they read.

    Of the writes to a place that begin before a transfer ends, the one that ends last must end before it begins.
    """
    count = len(sources)
    times = np.unique(np.concatenate([table.send, table.arrive]))
    begin, end = np.searchsorted(times, table.send), np.searchsorted(times, table.arrive)
    number = np.unique(np.concatenate([sources, targets]), return_inverse=True)[1]
    width = len(times) + 1
    key = number[count:] * width + begin
    order = np.argsort(key, kind="stable")
    # The latest end among the writes to a place so far; places only grow, so a running maximum never mixes them.
    latest = np.maximum.accumulate(number[count:][order] * width + end[order])
    before = np.searchsorted(key[order], number[:count] * width + end) - 1
    hit = (before >= 0) & (latest[before] > number[:count] * width + begin)
    return set(np.flatnonzero(hit).tolist())


def _bad_send(
    d: CollectiveDecisions, index: int, load: int, whole: int, reducing: bool, writers: Ints
) -> Iterator[str]:
    move = d.transfers[index]
    chunk = move.chunk
    if not load:
        yield f"{_spot(index, move)}: sent at {move.send_ns}, before rank {move.src} holds chunk {chunk}"
    for other in (d.transfers[i] for i in writers):
        exchanged = move.reduce and other.reduce and other.arrive_ns >= move.arrive_ns
        if other.send_ns < move.arrive_ns and move.send_ns < other.arrive_ns and not exchanged:
            yield f"{_spot(index, move)}: sent while a transfer from {other.src} still writes chunk {chunk}"
    if move.reduce and not reducing:
        yield f"{_spot(index, move)}: reduces in {d.collective}, which adds nothing up"
    if not move.reduce and load and load != whole:
        yield f"{_spot(index, move)}: sent on as final without the contributions of {_ranks(whole & ~load)}"


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
