"""Small programs whose times, together, separate the costs of the CPU runtime; they compute nothing of use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.codegen.collective.program import BlockStep, Buffer, CollectiveProgram, RankProgram, StepType, Threadblock

TINY, SMALL, MIDDLE, LARGE, HUGE = 64, 16 << 10, 64 << 10, 1 << 20, 16 << 20
TURNS, BURST, STEPS = 8, 32, 64
Place = tuple[Buffer, int]
FIRST_IN: Place = ("i", 0)
FIRST_OUT: Place = ("o", 0)


@dataclass(frozen=True)
class ProbeRun:
    """`bytes` of one chunk."""

    name: str
    program: CollectiveProgram
    bytes: int

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.program.chunks_per_loop


def probe_runs(homes: Sequence[int]) -> list[ProbeRun]:
    """What to run on ranks of the hosts `homes`: local work, messages inside a host, messages between hosts."""
    ranks = len(homes)
    runs = [
        ProbeRun("call", _local(ranks, 1, "cpy", only=0), TINY),
        ProbeRun("steps", _local(ranks, STEPS, "cpy"), TINY),
    ]
    for size in (MIDDLE, LARGE, HUGE):
        runs += [ProbeRun("copy", _local(ranks, 1, "cpy"), size), ProbeRun("sum", _local(ranks, 1, "re"), size)]
    for name, pairs in (("near", _pairs(homes, together=True)), ("far", _pairs(homes, together=False))):
        if pairs:
            alone = pairs if name == "near" else _first(pairs)
            runs += [ProbeRun(f"ping {name}", _ping(alone), size) for size in (TINY, SMALL, MIDDLE)]
            runs += [ProbeRun(f"burst {name}", _burst(pairs, BURST), size) for size in (TINY, SMALL)]
            runs += [ProbeRun(f"swap {name}", _burst(pairs, 1), size) for size in (LARGE, HUGE)]
            runs += [ProbeRun(f"add {name}", _burst(pairs, 1, "rrc"), size) for size in (LARGE, HUGE)]
    if ranks > 1:
        runs += [ProbeRun("turns", _turns(ranks, TURNS), size) for size in (TINY, SMALL)]
    if ranks > 1 and len(set(homes)) == 1:  # between hosts calls would overlap: ranks that only send there run ahead
        for size in (MIDDLE, LARGE, HUGE):
            runs += [ProbeRun("shift", _shift(ranks, "r"), size), ProbeRun("shift sum", _shift(ranks, "rrc"), size)]
    if ranks > 2:
        runs += [ProbeRun("pass", _pass(ranks), size) for size in (MIDDLE, LARGE, HUGE)]
    return runs


def grouped_runs(homes: Sequence[int]) -> list[ProbeRun]:
    """What to run on ranks of the hosts `homes` for the costs of grouped messages: those of the runs above whose rounds
    differ, and one of many messages in a round."""
    found = [run for run in probe_runs(homes) if run.name.split()[0] not in ("burst", "shift")]
    pairs = _pairs(homes, together=True) or _pairs(homes, together=False)
    # Chunks next to each other would travel as one message.
    return [*found, *(ProbeRun("many", _burst(pairs, BURST, apart=2), size) for size in (TINY, SMALL))]


def _program(blocks: Iterable[Sequence[Threadblock]], chunks: int) -> CollectiveProgram:
    ranks = tuple(RankProgram(chunks, chunks, 0, tuple(each)) for each in blocks)
    return CollectiveProgram("probe", "allreduce", ranks, chunks, 1)


def _block(send: int | None, recv: int | None, *steps: tuple[StepType, Place, Place]) -> Threadblock:
    return Threadblock(send, recv, 0, tuple(BlockStep(kind, src, dst) for kind, src, dst in steps))


def _local(ranks: int, steps: int, kind: StepType, only: int | None = None) -> CollectiveProgram:
    """Each rank (or `only` one) copies or adds its input to its output, `steps` times, one after the other."""
    block = _block(None, None, *[(kind, FIRST_IN, FIRST_OUT)] * steps)
    return _program([[block] if only in (None, rank) else [] for rank in range(ranks)], 1)


def _pairs(homes: Sequence[int], together: bool) -> list[int]:
    """By rank its partner on the same host, or on another one; a rank without any is its own. Empty without pairs."""
    found = list(range(len(homes)))
    for rank, home in enumerate(homes):
        if found[rank] == rank:
            free = (other for other in range(rank + 1, len(homes)) if found[other] == other)
            partner = next((other for other in free if (homes[other] == home) == together), rank)
            found[rank], found[partner] = partner, rank
    return [] if found == list(range(len(homes))) else found


def _first(pairs: Sequence[int]) -> list[int]:
    """The first pair alone, of which no message meets another one on a link."""
    first = next(rank for rank, other in enumerate(pairs) if rank != other)
    return [other if first in (rank, other) else rank for rank, other in enumerate(pairs)]


def _ping(pairs: Sequence[int]) -> CollectiveProgram:
    """A message of each pair goes to and fro TURNS times."""
    send: tuple[StepType, Place, Place] = ("s", ("o", 0), ("o", 0))
    take: tuple[StepType, Place, Place] = ("r", ("o", 0), ("o", 0))
    blocks = []
    for rank, other in enumerate(pairs):
        steps = (send, take) if rank < other else (take, send)
        blocks.append([] if rank == other else [_block(other, other, *steps * TURNS)])
    return _program(blocks, 1)


def _burst(pairs: Sequence[int], messages: int, kind: StepType = "r", apart: int = 1) -> CollectiveProgram:
    """Messages of each pair, in both directions, that need not wait for each other, of every `apart`-th chunk."""
    blocks = []
    for rank, peer in enumerate(pairs):
        chunks = range(0, messages * apart, apart)
        sends = _block(peer, None, *(("s", ("i", each), ("o", each)) for each in chunks))
        takes = _block(None, peer, *((kind, ("o", each), ("o", each)) for each in chunks))
        blocks.append([] if rank == peer else [sends, takes])
    return _program(blocks, messages * apart)


def _turns(ranks: int, turns: int) -> CollectiveProgram:
    """All ranks send to the next one what they received, `turns` times."""
    blocks = []
    for rank in range(ranks):
        steps: list[tuple[StepType, Place, Place]] = [("s", ("i", 0), ("o", 0))]
        for turn in range(turns):
            steps.append(("r", ("o", turn), ("o", turn)))
            if turn + 1 < turns:
                steps.append(("s", ("o", turn), ("o", turn + 1)))
        blocks.append([_block((rank + 1) % ranks, (rank - 1) % ranks, *steps)])
    return _program(blocks, turns)


def _shift(ranks: int, kind: StepType) -> CollectiveProgram:
    """All ranks send to the next one, which copies or adds what arrives."""
    return _program(
        [
            [
                _block((rank + 1) % ranks, None, ("s", ("i", 0), ("o", 0))),
                _block(None, (rank - 1) % ranks, (kind, ("o", 0), ("o", 0))),
            ]
            for rank in range(ranks)
        ],
        1,
    )


def _pass(ranks: int) -> CollectiveProgram:
    """A chunk of each rank is passed on around all others."""
    blocks = []
    for rank in range(ranks):
        steps: list[tuple[StepType, Place, Place]] = [("s", ("i", rank), ("o", rank))]
        for turn in range(1, ranks):
            chunk = (rank - turn) % ranks
            steps.append(("rcs" if turn + 1 < ranks else "r", ("o", chunk), ("o", chunk)))
        blocks.append([_block((rank + 1) % ranks, (rank - 1) % ranks, *steps)])
    return _program(blocks, ranks)
