"""What each step of a group takes, counted again: the payloads that a rank holds, their bytes, and their time.

Of a compressed tensor a rank holds payloads of one shard each. Compressing makes one for every shard that collectives
divide it into before it is decompressed; an alltoall leaves their number, an allgather and a gather multiply it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2, prod

from treadle.planner.documents.compression_costs import CompressorCost
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.machine.compressors import ALGORITHMS, compressor
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class CountedStep:
    """Resources held, ns, bytes that the busiest rank sends."""

    resources: tuple[str, ...]
    ns: int
    sent_bytes: int = 0
    issue_ns: int = 0
    """ns that it takes of the device first."""


@dataclass
class RankHoldings:
    """What a rank that takes part holds: elements of the tensor, as payloads of `shard` elements if there are any."""

    elements: int
    shard: int = 0
    payloads: int = 0
    pieces: int = 1
    """How many payloads there are of the same elements."""
    divided: dict[str, int] = field(default_factory=dict)
    """Elements before a collective divided them, by its scope."""
    roots: bool = False
    """Only the first rank of each node holds anything."""


def counted(problem: CompressionProblem, name: str | None, steps: Sequence[str], elements: int) -> list[CountedStep]:
    """The work of each of `steps`, which may be executed, on `elements` with the compressor `name`."""
    costs: dict[str, CompressorCost] = {cost.place: cost for cost in problem.compressors if cost.name == name}
    now, found = RankHoldings(elements), []
    for place, step in enumerate(steps):
        word, _, where = step.partition("@")
        if word == "compress":
            parts = _shards(problem, steps[place + 1 :])
            now.shard, now.payloads, now.pieces = -(-now.elements // parts), parts, 1
            found.append(CountedStep((where,), costs[where].encode.at(now.elements)))
        elif word == "decompress":
            found.append(CountedStep((where,), costs[where].decode_ns(now.elements, now.pieces)))
            now.payloads, now.pieces = 0, 1
        else:
            held = now.payloads * _payload_bytes(costs, now.shard) if now.payloads else DTYPE_BYTES * now.elements
            rounds = _rounds(costs) if now.payloads and word == "allreduce" else 1
            ns, sent = _collective(problem, word, where, held // rounds, now.roots)
            before = rounds * problem.issue.at(sent) if problem.issue is not None else 0
            found.append(CountedStep(_links(problem, where), rounds * ns, rounds * sent, before))
            _carry_on(now, word, where, _ranks(problem, where))
    return found


def _carry_on(now: RankHoldings, word: str, where: str, ranks: int) -> None:
    """What the rank holds after a collective."""
    if word in ("reduce-scatter", "alltoall"):
        now.divided[where] = now.elements
        now.elements = -(-now.elements // ranks)
        now.pieces *= ranks if now.payloads else 1
    elif word in ("reduce", "gather"):
        now.roots = now.roots or where == "intra"
        now.payloads, now.pieces = (now.payloads * ranks, now.pieces * ranks) if now.payloads else (0, 1)
    elif word == "broadcast":
        now.roots = now.roots and where != "intra"
    elif word == "allgather":
        now.payloads *= ranks
        if where in now.divided:
            now.elements = now.divided.pop(where)
        else:
            now.pieces *= ranks


def _ranks(problem: CompressionProblem, scope: str) -> int:
    return {"flat": problem.machines * problem.devices, "intra": problem.devices, "inter": problem.machines}[scope]


def _links(problem: CompressionProblem, scope: str) -> tuple[str, ...]:
    if scope != "flat":
        return (scope,)
    used = ("intra",) * (problem.devices > 1) + ("inter",) * (problem.machines > 1)
    return used or ("intra",)


def _shards(problem: CompressionProblem, after: Sequence[str]) -> int:
    """Into how many shards the steps `after` a compress divide its payload before they decompress it."""
    words = [step.partition("@") for step in after]
    end = next(place for place, (word, _, _) in enumerate(words) if word == "decompress")
    return prod(_ranks(problem, scope) for word, _, scope in words[:end] if word == "alltoall")


def _payload_bytes(costs: dict[str, CompressorCost], elements: int) -> int:
    cost = next(iter(costs.values()))
    return compressor(cost.name).wire_bytes(elements) if cost.wire is None else cost.wire.at(elements)


def _rounds(costs: dict[str, CompressorCost]) -> int:
    """Collectives that an allreduce of payloads takes."""
    cost = next(iter(costs.values()))
    return ALGORITHMS[cost.name.partition(":")[0]].messages if cost.wire is None else 1


def _collective(problem: CompressionProblem, word: str, scope: str, held: int, roots: bool) -> tuple[int, int]:
    """ns, and bytes that the busiest rank sends, if each rank brings along `held` bytes."""
    ranks = _ranks(problem, scope)
    others = ranks - 1
    tree = ceil(log2(ranks))
    if word in ("allreduce", "planned"):
        hops, arrives = 2 * others, 2 * others * held // ranks
    elif word in ("reduce-scatter", "alltoall"):
        hops, arrives = others, others * held // ranks
    elif word in ("reduce", "broadcast"):
        hops, arrives = tree, held if others else 0
    else:
        hops, arrives = tree if word == "gather" else others, others * held
    sent = min(held, arrives) if word == "gather" else arrives
    if word == "planned" and problem.planned is not None:
        return problem.planned.at(held), sent
    if not others or not held:
        return 0, 0
    alone = roots and problem.devices > 1 and scope != "intra"
    for cost in problem.routines:
        if not alone and (cost.routine, cost.scope, cost.ranks) == (word, scope, ranks):
            return cost.curve.at(held), sent
    if scope == "flat":
        return _flat(problem, word, hops, arrives, held), sent
    if scope == "intra":
        return _ns(hops, arrives, problem.intra), sent
    return _ns(hops, arrives * (1 if roots else problem.devices), problem.inter), sent


def _flat(problem: CompressionProblem, word: str, hops: int, arrives: int, held: int) -> int:
    """A ring passes both links, the slower of which it takes; an alltoall takes of a node's link what leaves it."""
    known = [link for link in (problem.intra, problem.inter) if link is not None]
    slow = max(link.beta_us_per_MB for link in known)
    wire = arrives * slow
    if word == "alltoall" and problem.machines > 1 and problem.devices > 1 and problem.intra and problem.inter:
        out = problem.devices * held * (problem.machines - 1) // problem.machines
        wire = max(out * problem.inter.beta_us_per_MB, arrives * problem.intra.beta_us_per_MB)
    return _rounded(hops * max(link.alpha_us for link in known), wire)


def _ns(hops: int, moved: int, link: GradientLink | None) -> int:
    assert link is not None
    return _rounded(hops * link.alpha_us, moved * link.beta_us_per_MB)


def _rounded(alpha_us: float, wire: float) -> int:
    """ns of us, and of bytes times us per MiB."""
    return int(1000 * alpha_us + 1000 * wire / MEBIBYTE + 0.5)
