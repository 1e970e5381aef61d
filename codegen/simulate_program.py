"""Alpha-beta time of an executable program on the links and ports of the algorithm it was lowered from (spec 7.12).

A message of `count` sub-chunks takes alpha + beta * count / instances on its link; the instances of one planned batch
are issued at once and share one alpha (TACCL, section 5.2.1: bulk sends). It starts when its threadblock has come to
it, and, where the receiver adds it to a sum, when the summand before it has been added. Links and ports serve messages
in the planned order. Local steps take no time: the model has no cost for them. So the time of a program with one
instance is the makespan of the algorithm, unless a batch had to be split.

With pipelined latency (TE-CCL) a message holds its link and ports for beta only and arrives alpha later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

from codegen import order
from codegen.program import RECEIVING, Connection, Place, Program, Step
from planner.collective.algorithm import CollectiveDecisions, LinkCost
from planner.errors import InputError
from planner.scalars import format_bytes
from planner.timeline import Resource, Schedule, Task, simulate

Link = tuple[int, int]


class Simulation(NamedTuple):
    """Times in ns. `tasks` are the steps, which take no time, after them the messages, sorted by connection, and after
    those the time on the way of each, where latency is pipelined."""

    tasks: tuple[Task, ...]
    resources: tuple[Resource, ...]
    schedule: Schedule


class _Plan(NamedTuple):
    """The batches of one link by send time: when each leaves, and how many chunks the link has carried after it."""

    cost: LinkCost
    send_ns: list[int]
    carried: list[int]


def simulate_program(program: Program, decisions: CollectiveDecisions) -> Simulation:
    """Raises InputError where `program` sends something else than `decisions` plans, or never ends."""
    steps = {place: step for place, _, step in program.steps()}
    number = {place: index for index, place in enumerate(steps)}
    after = {place: _local_waits(place, step, number) for place, step in steps.items()}
    plans = _plans(decisions)
    ports: dict[Link, list[str]] = defaultdict(list)
    for port in decisions.ports:
        for link in port.links:
            ports[link].append(f"port {port.name}")
    queues: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    messages: list[Task] = []
    arrivals: list[tuple[str, int, Place]] = []
    for connection, ends in order.connections(program).items():
        plan = plans.get((connection.src, connection.dst))
        counts = [steps[place].count for place in ends.sends]
        if plan is None or len(ends.sends) != len(ends.receives) or sum(counts) != plan.carried[-1]:
            raise InputError(
                f"gpu {connection.src} sends {sum(counts)} chunks to gpu {connection.dst} on channel "
                f"{connection.channel}, the plan {0 if plan is None else plan.carried[-1]}"
            )
        names = (f"link {connection.src}->{connection.dst}", *ports[connection.src, connection.dst])
        for place, receiver, total in zip(ends.sends, ends.receives, accumulate(counts), strict=True):
            task = len(steps) + len(messages)
            left = plan.send_ns[bisect_right(plan.carried, total - steps[place].count)]
            for name in names:
                queues[name].append(((left, connection.src, connection.dst, total, connection.channel), task))
            duration = _duration(plan.cost, steps[place].count, connection, decisions)
            gates = _summand_waits(program, receiver, number)
            label = _label(connection, steps[place], decisions)
            messages.append(Task(label, duration, names, (number[place], *gates)))
            arrivals.append((label, plan.cost.alpha_ns, receiver))
            after[receiver].append(task)
    flights: list[Task] = []
    if decisions.latency == "pipelined":
        for index, (label, alpha, receiver) in enumerate(arrivals, len(steps)):
            after[receiver].remove(index)
            after[receiver].append(len(steps) + len(messages) + len(flights))
            flights.append(Task(f"{label} on its way", alpha, after=(index,)))
    tasks = (
        *(Task(f"{step.type}@{place.rank}", 0, after=tuple(after[place])) for place, step in steps.items()),
        *messages,
        *flights,
    )
    resources = tuple(
        Resource(name, order=tuple(task for _, task in sorted(queue))) for name, queue in sorted(queues.items())
    )
    return Simulation(tasks, resources, simulate(tasks, resources))


def _label(connection: Connection, step: Step, decisions: CollectiveDecisions) -> str:
    """`0->1 o3+1 2 KiB`: from and to, the first chunk and how many more, the bytes."""
    place = "" if step.src is None else f" {step.src[0]}{step.src[1]}"
    more = f"+{step.count - 1}" if step.count > 1 else ""
    size = format_bytes(round(step.count * decisions.chunk_bytes / decisions.instances))
    return f"{connection.src}->{connection.dst}{place}{more} {size}"


def _plans(decisions: CollectiveDecisions) -> dict[Link, _Plan]:
    costs = {(link.src, link.dst): link for link in decisions.links}
    batches: dict[Link, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for move in decisions.transfers:
        batches[move.src, move.dst][move.send_ns, move.batch] += 1
    plans = {}
    for link, sizes in batches.items():
        if link not in costs:
            raise InputError(f"chunks go from {link[0]} to {link[1]}, where the plan has no link")
        keys = sorted(sizes)
        plans[link] = _Plan(costs[link], [key[0] for key in keys], list(accumulate(sizes[key] for key in keys)))
    return plans


def _duration(cost: LinkCost, count: int, connection: Connection, decisions: CollectiveDecisions) -> int:
    """How long a message holds its link. The shares of all instances add up to beta * count, whatever the rounding."""
    whole, i, parts = cost.beta_ns * count, connection.channel, decisions.instances
    alpha = cost.alpha_ns if i == 0 and decisions.latency == "serial" else 0
    return alpha + (i + 1) * whole // parts - i * whole // parts


def _local_waits(place: Place, step: Step, number: dict[Place, int]) -> list[int]:
    waits = [number[place._replace(step=place.step - 1)]] if place.step else []
    return waits if step.depends is None else [*waits, number[Place(place.rank, *step.depends)]]


def _summand_waits(program: Program, receiver: Place, number: dict[Place, int]) -> list[int]:
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
