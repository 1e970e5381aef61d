"""Alpha-beta time of an executable program on the links and ports of the algorithm it was lowered from.

A message of `count` sub-chunks takes alpha + beta * count / instances on its link; the instances of one planned batch
are issued at once and share one alpha (TACCL, section 5.2.1: bulk sends). It is ready when its threadblock has come to
it, the message before it on its connection has left and, where the receiver adds it to a sum, the summand before it has
been added. Links and ports serve messages first come first served, those ready at one time in an order in which the
program can run, and let a message pass one that waits for another port: no runtime knows the order of the plan. Local
steps take no time: the model has no cost for them.

With pipelined latency (TE-CCL) a message holds its link and ports for beta only and arrives alpha later. An uplink is
held for its own beta in either case.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from treadle.codegen.collective import order
from treadle.codegen.collective.program import RECEIVING, BlockStep, CollectiveProgram, Connection, Place
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost
from treadle.planner.timeline.simulator import Resource, Schedule, Task, simulate

Link = tuple[int, int]


class SimulatedProgram(NamedTuple):
    """Times in ns. `tasks` are the steps, which take no time, then the messages, sorted by connection, then the latency
    of each message, where latency is pipelined."""

    tasks: tuple[Task, ...]
    resources: tuple[Resource, ...]
    schedule: Schedule


def simulate_program(program: CollectiveProgram, decisions: CollectiveDecisions) -> SimulatedProgram:
    """Raises InputError where `program` sends something else than `decisions` plans, or never ends."""
    steps = {place: step for place, _, step in program.steps()}
    number = {place: index for index, place in enumerate(steps)}
    turn = {place: index for index, place in enumerate(order.run(program, len(steps)).sequence)}
    costs, planned = _links(decisions)
    ports: dict[Link, list[tuple[str, int | None]]] = defaultdict(list)
    for port in decisions.ports:
        for link in port.links:
            ports[link].append((f"port {port.name}", port.beta_ns))
    messages: list[Task] = []
    arrivals: list[tuple[str, int, Place]] = []
    for connection, ends in order.connections(program).items():
        link = connection.src, connection.dst
        counts = [steps[place].count for place in ends.sends]
        if len(ends.sends) != len(ends.receives) or sum(counts) != planned[link]:
            raise InputError(
                f"gpu {connection.src} sends {sum(counts)} chunks to gpu {connection.dst} on channel "
                f"{connection.channel}, the plan {planned[link]}"
            )
        names = (f"link {connection.src}->{connection.dst}", *(name for name, _ in ports[link]))
        before: list[int] = []
        for place, receiver in zip(ends.sends, ends.receives, strict=True):
            duration = _duration(costs[link], steps[place].count, connection, decisions)
            after = (number[place], *before, *_summand_waits(program, receiver, number))
            label = _label(connection, steps[place], decisions)
            held = tuple(
                (name, _share(own * steps[place].count, connection, decisions))
                for name, own in ports[link]
                if own is not None
            )
            messages.append(Task(label, duration, names, after, priority=turn.get(place, 0), held=held))
            arrivals.append((label, costs[link].alpha_ns, receiver))
            before = [len(steps) + len(messages) - 1]
    arrived: dict[Place, int] = {}
    flights: list[Task] = []
    for index, (label, alpha, receiver) in enumerate(arrivals, len(steps)):
        arrived[receiver] = index
        if decisions.latency == "pipelined":
            arrived[receiver] = len(steps) + len(messages) + len(flights)
            flights.append(Task(f"{label} in flight", alpha, after=(index,)))
    tasks = (
        *(
            Task(f"{step.type}@{place.rank}", 0, after=tuple(_waits(place, step, number, arrived)))
            for place, step in steps.items()
        ),
        *messages,
        *flights,
    )
    names = tuple(sorted({name for task in messages for name in task.resources}))
    resources = tuple(Resource(name, first="fits") for name in names)
    return SimulatedProgram(tasks, resources, simulate(tasks, resources))


def _label(connection: Connection, step: BlockStep, decisions: CollectiveDecisions) -> str:
    """`0->1 o3+1 2 KiB`: from and to, the first chunk and how many more, the bytes."""
    place = "" if step.src is None else f" {step.src[0]}{step.src[1]}"
    more = f"+{step.count - 1}" if step.count > 1 else ""
    size = format_bytes(round(step.count * decisions.chunk_bytes / decisions.instances))
    return f"{connection.src}->{connection.dst}{place}{more} {size}"


def _links(decisions: CollectiveDecisions) -> tuple[dict[Link, LinkCost], Counter[Link]]:
    """What a chunk costs on every link, and how many chunks each carries."""
    costs = {(link.src, link.dst): link for link in decisions.links}
    carried = Counter((move.src, move.dst) for move in decisions.transfers)
    if strange := sorted(carried.keys() - costs.keys()):
        raise InputError(f"chunks go from {strange[0][0]} to {strange[0][1]}, where the plan has no link")
    return costs, carried


def _duration(cost: LinkCost, count: int, connection: Connection, decisions: CollectiveDecisions) -> int:
    """How long a message holds its link."""
    alpha = cost.alpha_ns if connection.channel == 0 and decisions.latency == "serial" else 0
    return alpha + _share(cost.beta_ns * count, connection, decisions)


def _share(whole: int, connection: Connection, decisions: CollectiveDecisions) -> int:
    """The part of one instance in `whole` ns; those of all instances add up, whatever the rounding."""
    i, parts = connection.channel, decisions.instances
    return (i + 1) * whole // parts - i * whole // parts


def _waits(place: Place, step: BlockStep, number: dict[Place, int], arrived: dict[Place, int]) -> Iterator[int]:
    """The step before it, the step it depends on, the message it receives."""
    if place.step:
        yield number[place._replace(step=place.step - 1)]
    if step.depends is not None:
        yield number[Place(place.rank, *step.depends)]
    if place in arrived:
        yield arrived[place]


def _summand_waits(program: CollectiveProgram, receiver: Place, number: dict[Place, int]) -> list[int]:
    """The receives that a reducing receive waits for, on itself and on the nops before it."""
    blocks = program.ranks[receiver.rank].threadblocks
    steps = blocks[receiver.threadblock].steps
    if steps[receiver.step].type not in ("rrc", "rrcs", "rrs"):
        return []
    start = receiver.step
    while start > 0 and steps[start - 1].type == "nop":
        start -= 1
    waits = (step.depends for step in steps[start : receiver.step + 1])
    return [
        number[Place(receiver.rank, *depends)]
        for depends in waits
        if depends is not None and blocks[depends[0]].steps[depends[1]].type in RECEIVING
    ]
