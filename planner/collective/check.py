"""The independent checker of collective plans: replays every transfer from the plan alone (spec 2.5).

It shares no code with the methods that make plans. Intervals are half open: a link, a port or a sum is busy in
[send, arrive) and free again at arrive; with pipelined latency links and ports are free again alpha before that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from planner.collective.algorithm import CollectiveDecisions, Transfer
from planner.collective.collectives import DEMANDING, ROOTED, form_of
from planner.hardware import Hardware
from planner.sketch import Sketch

Message = tuple[int, int, tuple[int, int], list[int]]
"""(send, arrive, link, transfer indices)"""


def check(decisions: CollectiveDecisions) -> list[str]:
    """Everything wrong with the plan, each finding naming its spot; an empty list accepts it.

    Checks: chunk numbers and sizes; links exist; arrival = send + alpha + beta * batch size; batches; one message at a
    time on each link; one peer at a time on each port; nothing is sent before it is held; contributions are added
    exactly once, one at a time for each chunk and rank; every rank ends with what the collective promises; makespan, of
    the last arrival and not above that of the ordering (T3 <= T2).
    """
    found = list(_shape(decisions))
    if found:
        return found
    messages, problems = _messages(decisions)
    found += problems
    occupied = _occupied(decisions, messages)
    found += _overlaps_on_links(occupied)
    found += _overlaps_on_ports(decisions, occupied)
    found += _replay(decisions)
    latest = max((move.arrive_ns for move in decisions.transfers), default=0)
    if latest != decisions.makespan_ns:
        found.append(f"makespan_ns: found {decisions.makespan_ns}, the last transfer arrives at {latest}")
    if decisions.ordering_ns is not None and decisions.ordering_ns < decisions.makespan_ns:
        found.append(f"ordering_ns: found {decisions.ordering_ns}, expected at least the makespan {latest}")
    return found


def check_against_inputs(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch) -> list[str]:
    """Whether links, ports, costs and chunks are still those that these inputs give; findings name each difference.

    Raises InputError when the inputs do not fit together any more.
    """
    from planner.collective.problem import build_problem

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
    batching = problem.batching
    for link, batch, size in _batch_sizes(decisions):
        if size > 1 and (link not in batching.links or size > batching.max_run):
            found.append(
                f"link {link[0]} -> {link[1]}: batch {batch} of {size} chunks, which the sketch does not allow"
            )
    return found


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
    for index, port in enumerate(d.ports):
        for edge in port.links:
            if edge not in links:
                yield f"ports[{index}] ({port.name}): no link {edge[0]} -> {edge[1]}"
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
    cuts = max(Counter(rank for ranks in asked.before for rank in ranks).values(), default=1)
    if d.chunk_bytes != -(-d.input_bytes // cuts):
        due = -(-d.input_bytes // cuts)
        yield f"chunk_bytes: found {d.chunk_bytes}, {d.input_bytes} bytes in {cuts} pieces give {due}"
    count = len(asked.before)
    for index, move in enumerate(d.transfers):
        if move.chunk >= count:
            yield f"{_spot(index, move)}: found chunk {move.chunk}, expected one below {count}"
        if (move.src, move.dst) not in links:
            yield f"{_spot(index, move)}: no link {move.src} -> {move.dst}"
        if move.arrive_ns <= move.send_ns:
            yield f"{_spot(index, move)}: arrives at {move.arrive_ns}, sent at {move.send_ns}"


def _messages(d: CollectiveDecisions) -> tuple[list[Message], list[str]]:
    cost = {(link.src, link.dst): link for link in d.links}
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, move in enumerate(d.transfers):
        groups[move.src, move.dst, move.batch].append(index)
    messages, found = [], []
    for (src, dst, batch), members in sorted(groups.items()):
        first = d.transfers[members[0]]
        link = cost[src, dst]
        due = first.send_ns + link.alpha_ns + link.beta_ns * len(members)
        for index in members:
            move = d.transfers[index]
            if move.send_ns != first.send_ns:
                found.append(
                    f"{_spot(index, move)}: sent at {move.send_ns}, its batch {batch} leaves at {first.send_ns}"
                )
            elif move.arrive_ns != due:
                found.append(
                    f"{_spot(index, move)}: arrives at {move.arrive_ns}, expected {due} = {move.send_ns} + "
                    f"{link.alpha_ns} + {len(members)} * {link.beta_ns}"
                )
            if move.reduce != first.reduce:
                found.append(f"{_spot(index, move)}: reduces, unlike others of its batch {batch}")
        messages.append((first.send_ns, max(d.transfers[i].arrive_ns for i in members), (src, dst), members))
    return messages, found


def _occupied(d: CollectiveDecisions, messages: list[Message]) -> list[Message]:
    """The messages with the time until which they hold their link in place of their arrival."""
    if d.latency == "serial":
        return messages
    alpha = {(link.src, link.dst): link.alpha_ns for link in d.links}
    return [(send, arrive - alpha[link], link, members) for send, arrive, link, members in messages]


def _overlaps(messages: Iterable[Message]) -> Iterator[tuple[Message, Message]]:
    latest: Message | None = None
    for message in sorted(messages, key=lambda m: (m[0], m[1], m[2])):
        if latest is not None and message[0] < latest[1]:
            yield latest, message
        if latest is None or message[1] > latest[1]:
            latest = message


def _overlaps_on_links(messages: list[Message]) -> Iterator[str]:
    by_link: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        by_link[message[2]].append(message)
    for (src, dst), group in sorted(by_link.items()):
        for one, other in _overlaps(group):
            yield (
                f"link {src} -> {dst}: transfers[{one[3][0]}] and transfers[{other[3][0]}] overlap, "
                f"[{one[0]}, {one[1]}) and [{other[0]}, {other[1]})"
            )


def _overlaps_on_ports(d: CollectiveDecisions, messages: list[Message]) -> Iterator[str]:
    for port in d.ports:
        members = set(port.links)
        for one, other in _overlaps(message for message in messages if message[2] in members):
            if one[2] != other[2]:
                yield (
                    f"port {port.name}: two peers at once, transfers[{one[3][0]}] on {one[2][0]} -> {one[2][1]} and "
                    f"transfers[{other[3][0]}] on {other[2][0]} -> {other[2][1]}"
                )


def _replay(d: CollectiveDecisions) -> Iterator[str]:
    """Follow the data. What a rank holds of a chunk is the set of ranks whose contributions are in it, as bits."""
    asked = form_of(d)
    bits: dict[frozenset[int], int] = {}
    for group in {*asked.before}:
        bits[group] = sum(1 << rank for rank in group)
    whole = [bits[group] if asked.reducing else 1 for group in asked.before]
    holds: dict[tuple[int, int], int] = {}
    for chunk, group in enumerate(asked.before):
        for rank in group:
            holds[chunk, rank] = 1 << rank if asked.reducing else 1

    arrived: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for move in d.transfers:
        arrived[move.chunk, move.dst].append(move)
    carried: dict[int, int] = {}
    # At equal times arrivals come before sends: what arrives at t may be sent on at t.
    events = sorted(
        [(move.arrive_ns, 0, index) for index, move in enumerate(d.transfers)]
        + [(move.send_ns, 1, index) for index, move in enumerate(d.transfers)]
    )
    for _, sending, index in events:
        move = d.transfers[index]
        chunk = move.chunk
        if sending:
            carried[index] = load = holds.get((chunk, move.src), 0)
            if not load:
                yield f"{_spot(index, move)}: sent at {move.send_ns}, before rank {move.src} holds chunk {chunk}"
            for other in arrived.get((chunk, move.src), ()):
                if other.send_ns < move.arrive_ns and move.send_ns < other.arrive_ns:
                    yield f"{_spot(index, move)}: sent while a transfer from {other.src} still writes chunk {chunk}"
            if move.reduce and not asked.reducing:
                yield f"{_spot(index, move)}: reduces in {d.collective}, which adds nothing up"
            if not move.reduce and load and load != whole[chunk]:
                missing = _ranks(whole[chunk] & ~load)
                yield f"{_spot(index, move)}: sent on as final without the contributions of {missing}"
            continue
        mine, load = holds.get((chunk, move.dst), 0), carried.pop(index)
        if move.reduce and mine & load:
            yield f"{_spot(index, move)}: adds the contributions of {_ranks(mine & load)} a second time"
        if not move.reduce and mine == whole[chunk]:
            yield f"{_spot(index, move)}: rank {move.dst} holds chunk {chunk} already"
        holds[chunk, move.dst] = mine | load

    for (chunk, rank), moves in sorted(arrived.items()):
        if len(moves) > 1:
            for one, other in _simultaneous(moves):
                yield (
                    f"chunk {chunk} at rank {rank}: transfers from {one.src} and {other.src} arrive at the same time, "
                    f"[{one.send_ns}, {one.arrive_ns}) and [{other.send_ns}, {other.arrive_ns})"
                )
    for chunk, group in enumerate(asked.after):
        for rank in sorted(group):
            missed = whole[chunk] & ~holds.get((chunk, rank), 0)
            if missed:
                what = f"lacks the contributions of {_ranks(missed)}" if asked.reducing else "never arrives"
                yield f"postcondition: chunk {chunk} at rank {rank} {what}"


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def _simultaneous(moves: list[Transfer]) -> Iterator[tuple[Transfer, Transfer]]:
    latest: Transfer | None = None
    for move in sorted(moves, key=lambda m: (m.send_ns, m.arrive_ns, m.src)):
        if latest is not None and move.send_ns < latest.arrive_ns:
            yield latest, move
        if latest is None or move.arrive_ns > latest.arrive_ns:
            latest = move
