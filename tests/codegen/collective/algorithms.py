"""Hand-made collective algorithms for tests: moves in causal order become decisions with the earliest times."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost, Port, Transfer


class Move(NamedTuple):
    """`chunks` leave `src` for `dst` as one message."""

    chunks: tuple[int, ...]
    src: int
    dst: int
    reduce: bool = False


def decide(
    collective: str,
    ranks: int,
    moves: Sequence[Move],
    *,
    chunkup: int = 1,
    alpha: int = 1000,
    beta: int = 8000,
    root: int | None = None,
    instances: int = 1,
    ports: tuple[Port, ...] = (),
) -> CollectiveDecisions:
    """Earliest times: links and ports take one message at a time, a chunk is reduced once at a time at each rank."""
    ready: dict[tuple[int, int], int] = defaultdict(int)
    free: dict[object, int] = defaultdict(int)
    transfers = []
    for number, move in enumerate(moves):
        link = (move.src, move.dst)
        resources = [link, *(port.name for port in ports if link in port.links)]
        start = max(
            [ready[move.src, chunk] for chunk in move.chunks]
            + [free[resource] for resource in resources]
            + [ready[move.dst, chunk] for chunk in move.chunks if move.reduce]
        )
        end = start + alpha + beta * len(move.chunks)
        for resource in resources:
            free[resource] = end
        for chunk in move.chunks:
            ready[move.dst, chunk] = end
            transfers.append(Transfer(chunk, move.src, move.dst, start, end, number, move.reduce))
    pieces = ranks * chunkup if collective in ("reducescatter", "allreduce", "alltoall") else chunkup
    return CollectiveDecisions(
        collective=collective,
        ranks=ranks,
        chunkup=chunkup,
        chunk_bytes=1024,
        input_bytes=1024 * pieces,
        root=root,
        links=tuple(
            LinkCost(src, dst, "link", alpha, beta) for src, dst in sorted({(move.src, move.dst) for move in moves})
        ),
        ports=ports,
        transfers=tuple(transfers),
        makespan_ns=max((move.arrive_ns for move in transfers), default=0),
        instances=instances,
    )


def tree_moves(edges: Sequence[tuple[int, int]], chunk: int) -> list[Move]:
    """Broadcast of one chunk along edges that are listed from the root outwards."""
    return [Move((chunk,), src, dst) for src, dst in edges]


def inverted(moves: Sequence[Move]) -> list[Move]:
    """The reduction that runs a broadcast backwards."""
    return [Move(move.chunks, move.dst, move.src, True) for move in reversed(moves)]


def random_tree(ranks: int, root: int, rng: random.Random) -> list[tuple[int, int]]:
    """A spanning tree of edges from the root outwards."""
    others = [rank for rank in range(ranks) if rank != root]
    rng.shuffle(others)
    reached, edges = [root], []
    for rank in others:
        edges.append((rng.choice(reached), rank))
        reached.append(rank)
    return edges


def random_algorithm(collective: str, ranks: int, chunkup: int, instances: int, seed: int) -> CollectiveDecisions:
    """A random valid algorithm: one random tree per chunk, chunks interleaved, some neighbours sent together."""
    rng = random.Random(f"{collective} {ranks} {chunkup} {seed}")
    root = rng.randrange(ranks)
    trees: list[list[Move]] = []
    for chunk, owner in _owners(collective, ranks, chunkup, root):
        if collective == "alltoall":
            target = chunk // chunkup % ranks
            path = [owner, *rng.sample([r for r in range(ranks) if r not in (owner, target)], rng.randrange(ranks - 1))]
            path = [*path, target] if target != owner else []
            trees.append([Move((chunk,), a, b) for a, b in pairwise(path)])
        else:
            out = tree_moves(random_tree(ranks, owner, rng), chunk)
            back = inverted(out)
            if collective == "allreduce":
                trees.append(back + tree_moves(random_tree(ranks, owner, rng), chunk))
            else:
                trees.append(back if collective in ("reducescatter", "reduce") else out)
    rooted = collective in ("broadcast", "reduce")
    moves = _grouped(_interleaved(trees, rng), rng)
    return decide(collective, ranks, moves, chunkup=chunkup, instances=instances, root=root if rooted else None)


def _owners(collective: str, ranks: int, chunkup: int, root: int) -> list[tuple[int, int]]:
    if collective in ("broadcast", "reduce"):
        return [(k, root) for k in range(chunkup)]
    if collective == "alltoall":
        return [(chunk, chunk // (ranks * chunkup)) for chunk in range(ranks * ranks * chunkup)]
    return [(chunk, chunk // chunkup) for chunk in range(ranks * chunkup)]


def _interleaved(trees: list[list[Move]], rng: random.Random) -> list[Move]:
    left = [list(reversed(tree)) for tree in trees if tree]
    moves = []
    while left:
        tree = rng.choice(left)
        moves.append(tree.pop())
        left = [tree for tree in left if tree]
    return moves


def _grouped(moves: list[Move], rng: random.Random) -> list[Move]:
    """Join some moves of one link; a later one may come forward only if nothing between touches its chunk."""
    moves = list(moves)
    for at in range(len(moves) - 1, 0, -1):
        later = moves[at]
        for before in range(at - 1, max(-1, at - 6), -1):
            earlier = moves[before]
            if set(earlier.chunks) & set(later.chunks):
                break
            if (earlier.src, earlier.dst, earlier.reduce) == (
                later.src,
                later.dst,
                later.reduce,
            ) and rng.random() < 0.7:
                moves[before] = Move(tuple(sorted({*earlier.chunks, *later.chunks})), *earlier[1:])
                del moves[at]
                break
    return moves


def ring_allreduce(ranks: int, **options: int) -> CollectiveDecisions:
    """The textbook ring: ranks - 1 rounds of reduction, ranks - 1 rounds of copies."""
    moves = []
    for reduce in (True, False):
        for turn in range(ranks - 1):
            for rank in range(ranks):
                chunk = (rank - turn + (0 if reduce else 1)) % ranks
                moves.append(Move((chunk,), rank, (rank + 1) % ranks, reduce))
    return decide("allreduce", ranks, moves, **options)


def exchange_allreduce(ranks: int, together: int = 2) -> CollectiveDecisions:
    """Recursive doubling: in round k every rank swaps partial sums with the rank whose bit k differs, `together`
    chunks a message."""
    transfers, links, time = [], set(), 0
    for turn in range(ranks.bit_length() - 1):
        for rank in range(ranks):
            links.add((rank, rank ^ (1 << turn)))
            for chunk in range(ranks):
                message = chunk // together
                start = time + message * (1 + 2 * together)
                number = turn * ranks + message
                transfers.append(
                    Transfer(chunk, rank, rank ^ (1 << turn), start, start + 1 + 2 * together, number, True)
                )
        time += ranks // together * (1 + 2 * together)
    return CollectiveDecisions(
        collective="allreduce",
        ranks=ranks,
        chunkup=1,
        chunk_bytes=1024,
        input_bytes=1024 * ranks,
        links=tuple(LinkCost(src, dst, "link", 1, 2) for src, dst in sorted(links)),
        transfers=tuple(transfers),
        makespan_ns=time,
    )


def line_alltoall() -> CollectiveDecisions:
    """ALLTOALL on the line 0-1-2: chunks 0 -> 2 and 2 -> 0 pass through rank 1 (spec 6.4)."""
    moves = [
        Move((2,), 0, 1),
        Move((6,), 2, 1),
        Move((3,), 1, 0),
        Move((5,), 1, 2),
        Move((1,), 0, 1),
        Move((7,), 2, 1),
        Move((2,), 1, 2),
        Move((6,), 1, 0),
    ]
    return decide("alltoall", 3, moves)
