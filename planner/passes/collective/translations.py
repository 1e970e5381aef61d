"""Rotations of the ranks that leave links and ports as they are, so that one message stands for its whole orbit.

Rank numbers are read in mixed radix: a digit (o, g) is (rank % g) // o, and digits are nested, o_1 | g_1 | o_2 | g_2.
Turning digits moves every rank but the identity fixes all, so a schedule of one message of every orbit, timed on
orbits of links and ports, is a schedule of all messages: images of one message never meet on a resource. Rotations
inside nodes, from node to node, and along each dimension of a torus are of this kind (the symmetries of TACCL, section
5.4, found instead of given).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.collective.collectives import ROUTED_AS
from treadle.planner.passes.collective.problem import Problem

Ints = NDArray[np.int64]
Digit = tuple[int, int]


@dataclass(frozen=True)
class Translations:
    """The group that turns `digits` of `ranks` rank numbers; without digits, the identity alone."""

    ranks: int
    digits: tuple[Digit, ...] = ()

    @property
    def order(self) -> int:
        return prod(block // offset for offset, block in self.digits)

    @cached_property
    def table(self) -> Ints:
        """[element, rank] -> the rank that the element takes it to; element 0 is the identity."""
        rows = np.arange(self.ranks, dtype=np.int64)[None, :]
        for offset, block in self.digits:
            rows = np.concatenate([_turned(rows, offset, block, by) for by in range(block // offset)])
        return rows

    @cached_property
    def representative(self) -> list[int]:
        """By rank: the rank of its orbit whose digits are all 0."""
        found = np.arange(self.ranks, dtype=np.int64)
        for offset, block in self.digits:
            found -= found % block // offset * offset
        return [int(rank) for rank in found]

    @cached_property
    def roots(self) -> list[int]:
        """One rank of every orbit."""
        return sorted(set(self.representative))

    def moved(self, rank: int, by: int, back: bool = False) -> int:
        """Where the element that takes `by`'s representative to `by` takes `rank`, or its inverse with `back`."""
        for offset, block in self.digits:
            turn = by % block // offset * offset
            base, here = rank - rank % block, rank % block
            rank = base + (here + (block - turn if back else turn)) % block
        return rank

    def moved_chunk(self, problem: Problem, chunk: Any, move: Any) -> Any:
        """Where `move`, a function of ranks, takes a chunk: owner and target move, the piece stays."""
        if not self.digits:
            return chunk
        part, piece = divmod(chunk, problem.chunkup)
        if ROUTED_AS[problem.collective] == "alltoall":
            owner, target = divmod(part, self.ranks)
            return (move(owner) * self.ranks + move(target)) * problem.chunkup + piece
        return move(part) * problem.chunkup + piece


def node_translations(problem: Problem, size: int) -> Translations:
    """The rotations from node to node of `size` ranks alone, where they leave the problem as it is."""
    if size < problem.ranks and _turns_chunks(problem):
        digit = (size, problem.ranks)
        network = _Network.of(problem)
        image = network.image(digit)
        if image is not None and network.is_free([(digit, image)]):
            return Translations(problem.ranks, (digit,))
    return Translations(problem.ranks)


def translations(problem: Problem) -> Translations:
    """The largest group of nested rotations that leaves links, costs, ports and the collective as they are."""
    if not _turns_chunks(problem):
        return Translations(problem.ranks)
    network = _Network.of(problem)
    ranks = problem.ranks
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    images: dict[Digit, Ints] = {}
    for block in divisors:
        for offset in divisors:
            if offset < block and block % offset == 0:
                image = network.image((offset, block))
                if image is not None and network.is_free([((offset, block), image)]):
                    images[offset, block] = image
    best: dict[int, tuple[Digit, ...]] = {}
    for size in divisors:
        inner = [best[less] for less in divisors if less < size and size % less == 0]
        inner += [(*best[offset], (offset, block)) for offset, block in images if block == size]
        best[size] = max(inner, key=lambda digits: Translations(ranks, digits).order, default=())
    found = best[ranks]
    if not network.is_free([(digit, images[digit]) for digit in found]):
        found = max(((digit,) for digit in images), key=lambda digits: Translations(ranks, digits).order)
    return Translations(ranks, found)


def _turns_chunks(problem: Problem) -> bool:
    return ROUTED_AS[problem.collective] in ("allgather", "alltoall") and problem.roots is None


def _turned(ranks: Ints, offset: int, block: int, by: int = 1) -> Ints:
    return ranks - ranks % block + (ranks % block + by * offset) % block


@dataclass(frozen=True)
class _Network:
    """Links by src * ranks + dst with a number for what each costs; ports by a signature of their links."""

    ranks: int
    codes: Ints
    costs: Ints
    routed: Ints
    """The links that routes are chosen on: an allreduce runs some backwards, too."""
    port_starts: Ints
    port_links: Ints
    port_betas: Ints
    """Their own betas, -1 for none."""
    signs: Ints
    """A random number for every link: the sum over a port's links identifies the port it may be turned to."""

    @staticmethod
    def of(problem: Problem) -> _Network:
        links = problem.topology.routing.links
        routed = np.array([src * problem.ranks + dst for src, dst in links], dtype=np.int64)
        return _network(problem.ranks, tuple(problem.links.values()), problem.ports, tuple(np.sort(routed).tolist()))

    def image(self, digit: Digit) -> Ints | None:
        """By port: the port it is turned to. None where a link or a port has no equal image."""
        src, dst = np.divmod(self.codes, self.ranks)
        codes = _turned(src, *digit) * self.ranks + _turned(dst, *digit)
        place = np.searchsorted(self.codes, codes)
        place[place == len(self.codes)] = 0
        if not (self.codes[place] == codes).all() or not (self.costs[place] == self.costs).all():
            return None
        src, dst = np.divmod(self.routed, self.ranks)
        if (np.sort(_turned(src, *digit) * self.ranks + _turned(dst, *digit)) != self.routed).any():
            return None
        if not len(self.port_starts):
            return self.port_starts
        before, after = self._ports(self.signs), self._ports(self.signs[place])
        order = np.argsort(before)
        found = order[np.minimum(np.searchsorted(before, after, sorter=order), len(before) - 1)]
        size = len(self.codes)
        of = np.repeat(np.arange(len(found)), np.diff(np.append(self.port_starts, len(self.port_links))))
        images = np.sort(found[of] * size + place[self.port_links])
        same = (images == np.sort(of * size + self.port_links)).all() and (
            self.port_betas[found] == self.port_betas
        ).all()
        return found if same else None

    def is_free(self, generators: Iterable[tuple[Digit, Ints]]) -> bool:
        """Whether no element of the group but the identity leaves a port in place."""
        home = np.arange(len(self.port_starts), dtype=np.int64)
        elements = home[None, :]
        for (offset, block), image in generators:
            rows = [elements]
            for _ in range(block // offset - 1):
                rows.append(image[rows[-1]])
            elements = np.concatenate(rows)
        return not (elements[1:] == home).any()

    def _ports(self, signs: Ints) -> Ints:
        return np.asarray(np.add.reduceat(signs[self.port_links], self.port_starts))


@lru_cache(maxsize=4)
def _network(ranks: int, links: tuple[Any, ...], ports: tuple[Any, ...], routed: tuple[int, ...]) -> _Network:
    codes = np.array([link.src * ranks + link.dst for link in links], dtype=np.int64)
    kinds: dict[Any, int] = {}
    costs = np.array(
        [kinds.setdefault((link.kind, link.alpha_ns, link.beta_ns), len(kinds)) for link in links], dtype=np.int64
    )
    order = np.argsort(codes)
    codes, costs = codes[order], costs[order]
    members = np.array([src * ranks + dst for port in ports for src, dst in port.links], dtype=np.int64)
    sizes = [len(port.links) for port in ports]
    return _Network(
        ranks,
        codes,
        costs,
        np.array(routed, dtype=np.int64),
        np.cumsum([0, *sizes[:-1]], dtype=np.int64) if sizes else np.zeros(0, dtype=np.int64),
        np.searchsorted(codes, members),
        np.array([-1 if port.beta_ns is None else port.beta_ns for port in ports], dtype=np.int64),
        np.random.default_rng(0).integers(2**40, size=len(codes), dtype=np.int64),
    )
