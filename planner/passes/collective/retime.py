"""An algorithm at another size: its messages in their order, with the costs of that size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Transfer
from treadle.planner.passes.collective.messages import Message, in_order, moves_of_messages, timed
from treadle.planner.passes.collective.nvls import steps_of
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import Move
from treadle.planner.passes.collective.synthesis import Draft, Request, request_of


@dataclass(frozen=True)
class Algorithm:
    """Messages in the order of their sends, and how they cut the buffers: decisions without times."""

    problem: Problem
    messages: tuple[Message, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for algorithms that differ in nothing but size and times."""
        return self.problem.chunkup, self.problem.roots, self.messages

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return moves_of_messages(self.problem, self.messages)

    def time_ns(self, problem: Problem) -> int:
        """Its makespan on `problem`, which differs from its own in nothing but size."""
        costs, ports = problem.links, problem.ports
        leading = [message for message in self.messages if not message.twin]
        moves = [
            replace(
                move,
                alpha=costs[move.src, move.dst].alpha_ns,
                beta=costs[move.src, move.dst].beta_ns * len(message.chunks),
                own=tuple((port, (ports[port[1]].beta_ns or 0) * len(message.chunks)) for port, _ in move.own),
            )
            for move, message in zip(self.moves, leading, strict=True)
        ]
        return in_order(moves).makespan

    def draft(self, problem: Problem, method: str, status: str) -> Draft:
        """The algorithm timed on `problem`."""
        return Draft(problem=problem, transfers=timed(problem, self.messages), method=method, status=status)


@dataclass(frozen=True)
class InSwitch:
    """What a switch does for the pieces of a problem, by method `nvls`."""

    problem: Problem

    @property
    def identity(self) -> tuple[object, ...]:
        """As `Algorithm.identity`."""
        return self.problem.chunkup, "in the switch"

    def time_ns(self, problem: Problem) -> int:
        """Its makespan on `problem`, which differs from its own in nothing but size."""
        return max(step.end_ns for step in steps_of(problem))


AnyAlgorithm = Algorithm | InSwitch


def drafted(draft: Draft) -> AnyAlgorithm:
    """The algorithm of a draft."""
    return InSwitch(draft.problem) if draft.switched else algorithm_of(draft.problem, draft.transfers)


def algorithm_of(problem: Problem, transfers: tuple[Transfer, ...]) -> Algorithm:
    """The algorithm of timed transfers. A message leaves with what has arrived by then, so the order of the sends is a
    causal order."""
    groups: dict[tuple[int, int, int, int], list[Transfer]] = {}
    for move in transfers:
        groups.setdefault((move.send_ns, move.src, move.dst, move.batch), []).append(move)
    sent: dict[tuple[int, int, int, tuple[int, ...]], Message] = {}
    for (send, src, dst, _), members in sorted(groups.items()):
        message = Message(tuple(move.chunk for move in members), src, dst, members[0].reduce)
        sent[send, src, dst, message.chunks] = message
    found: list[Message] = []
    for (send, src, dst, chunks), message in sent.items():
        back = sent.get((send, dst, src, chunks)) if message.reduce else None
        if back is None or not back.reduce:
            found.append(message)
        elif src < dst:
            found += [message, back._replace(twin=True)]
    return Algorithm(problem, tuple(found))


def resized(algorithm: AnyAlgorithm, request: Request, size_bytes: int) -> Problem:
    """The problem that `algorithm` solves for the request at another size."""
    problem = algorithm.problem
    return replace(request, size_bytes=size_bytes).problem(problem.chunkup, problem.roots)


@dataclass(frozen=True)
class Retimed:
    """A plan's algorithm and the request it answers, to be timed at other sizes."""

    algorithm: AnyAlgorithm
    request: Request

    def at(self, size_bytes: int) -> tuple[int, Problem]:
        """Its ns at another size, and the problem there."""
        problem = resized(self.algorithm, self.request, size_bytes)
        return self.algorithm.time_ns(problem), problem


def retimed(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch) -> Retimed:
    """Raises InputError where the plan does not fit these inputs."""
    request = request_of(decisions, hardware, sketch)
    problem = request.problem(decisions.chunkup, decisions.roots)
    if decisions.switched:
        return Retimed(InSwitch(_of_method(decisions, problem)), request)
    return Retimed(algorithm_of(problem, decisions.transfers), request)


def _of_method(decisions: CollectiveDecisions, problem: Problem) -> Problem:
    """`problem`. Raises InputError unless its steps by method `nvls` are those of the decisions, but for times."""
    there = sorted((step.chunk, step.op, step.rank, step.switch) for step in steps_of(problem))
    if sorted((step.chunk, step.op, step.rank, step.switch) for step in decisions.switched) != there:
        raise InputError("the steps of switches are not those of method nvls, and others are not timed again")
    return problem


def timed_on(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch) -> CollectiveDecisions:
    """The plan's messages at the costs of these inputs. Raises InputError where they have other links or ports."""
    problem = request_of(decisions, hardware, sketch).problem(decisions.chunkup, decisions.roots)
    if decisions.switched:
        steps = steps_of(_of_method(decisions, problem))
        return structs.replace(
            decisions,
            links=tuple(problem.links.values()),
            ports=problem.ports,
            latency=problem.latency,
            switches=problem.switches,
            switched=steps,
            makespan_ns=max(step.end_ns for step in steps),
        )
    links = {(link.src, link.dst) for link in decisions.links}
    if {(link.src, link.dst) for link in problem.links.values()} != links:
        raise InputError("the inputs have other links than the plan; plan again")
    ports = {frozenset(port.links): port for port in problem.ports}
    if ports.keys() != {frozenset(port.links) for port in decisions.ports}:
        raise InputError("other links take turns at a port than in the plan; plan again")
    transfers = timed(problem, algorithm_of(problem, decisions.transfers).messages)
    costs = tuple(problem.links[link.src, link.dst] for link in decisions.links)
    makespan = max((move.arrive_ns for move in transfers), default=0)
    taken = tuple(structs.replace(p, beta_ns=ports[frozenset(p.links)].beta_ns) for p in decisions.ports)
    fresh = {"links": costs, "latency": problem.latency, "transfers": transfers, "makespan_ns": makespan}
    return structs.replace(decisions, **fresh, ports=taken, routing_ns=None, ordering_ns=None)
