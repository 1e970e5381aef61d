"""Predicted times of MSCCL XML, compared with measured ones.

Measured: rccl-tests in place on eight MI300X (RCCL 2.21.5, ROCm 6.3; rouge3877/ns3-msccl-data), and the in-place
allreduces of eight A100 in microsoft/msccl-leaderboard. The XML files of those rows are not published, so the same
algorithms are built here: all-pairs with x instances, ring with c channels (chunk k on channel k mod c) and instances.
Sizes are those of the tests, the larger buffer. Rows marked `fit` decided the numbers in profiles/mi300x.yaml and
profiles/ndv4.yaml; the others were held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from benchmarks.common import Row, Table
from treadle.codegen.collective.check import check
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.codegen.collective.simulate_xml import simulate_xml
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import format_bytes
from treadle.probe.resolve import load_hardware

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 4 * GIB)
FITTED_SIZES = (KIB, MIB, 256 * MIB)
"""Sizes that were fitted, for cases that are not in HELD_OUT."""


def all_pairs_allgather(ranks: int, instances: int, protocol: str) -> CollectiveProgram:
    """Every rank sends its part to every other, in place; one threadblock per peer and instance sends and receives."""

    def block(rank: int, peer: int, i: int) -> Threadblock:
        out, into = rank * instances + i, peer * instances + i
        return Threadblock(
            peer, peer, i, (BlockStep("s", ("o", out), ("o", out)), BlockStep("r", ("o", into), ("o", into)))
        )

    programs = tuple(
        RankProgram(
            instances,
            ranks * instances,
            0,
            tuple(block(rank, peer, i) for i in range(instances) for peer in range(ranks) if peer != rank),
        )
        for rank in range(ranks)
    )
    return _program(f"ag_allpair x_{instances}", "allgather", programs, ranks * instances, instances, protocol)


def ring_allgather(ranks: int, channels: int, instances: int, protocol: str) -> CollectiveProgram:
    """One ring, in place: chunk k of every instance travels on channel k mod `channels`."""

    def step(rank: int, turn: int, i: int) -> BlockStep:
        at = ("o", (rank - turn) % ranks * instances + i)
        return BlockStep("s" if turn == 0 else "rcs" if turn < ranks - 1 else "r", at, at)

    programs = tuple(
        RankProgram(instances, ranks * instances, 0, _ring(rank, ranks, ranks, channels, instances, step))
        for rank in range(ranks)
    )
    name = f"ag_ring {channels}_{instances}"
    return _program(name, "allgather", programs, ranks * instances, channels * instances, protocol)


def _ring(
    rank: int, ranks: int, turns: int, channels: int, instances: int, step: Callable[[int, int, int], BlockStep]
) -> tuple[Threadblock, ...]:
    """The threadblocks of a rank: one for each instance and channel, with the steps of its turns on that channel."""

    def block(i: int, channel: int) -> Threadblock:
        own = [turn for turn in range(turns) if (rank - turn) % ranks % channels == channel]
        steps = tuple(step(rank, turn, i) for turn in own)
        return Threadblock((rank + 1) % ranks, (rank - 1) % ranks, i * channels + channel, steps)

    return tuple(block(i, channel) for i in range(instances) for channel in range(channels))


def all_pairs_allreduce(ranks: int, instances: int, protocol: str) -> CollectiveProgram:
    """Every rank receives its part of all inputs into scratch, sums it and sends the sum to every other, in place.

    A part has a column for each rank. Threadblock b exchanges with rank b and sums column b; a threadblock without a
    peer sums the rank's own column. With Simple a part is at most two messages: threadblocks send before they receive,
    and there are two slots.
    """
    part = ranks * instances
    programs = tuple(
        RankProgram(
            ranks * part,
            0,
            (ranks - 1) * part,
            tuple(_summing_block(rank, b, ranks, i, part) for i in range(instances) for b in range(ranks)),
        )
        for rank in range(ranks)
    )
    made = _program(f"ar_allpair x_{instances}", "allreduce", programs, ranks * part, instances, protocol)
    return replace(made, max_bytes=ranks * part * 512 * KIB) if protocol == "Simple" else made


def _summing_block(rank: int, b: int, ranks: int, i: int, part: int) -> Threadblock:
    others = [other for other in range(ranks) if other != rank]
    mine, base = rank * part + i * ranks, i * ranks
    peer = b if b != rank else None
    steps: list[BlockStep] = []
    arrivals = [(base + other, 1) for other in others if other != b]
    if peer is not None:
        scratch = others.index(peer) * part + i * ranks
        steps.append(BlockStep("s", ("i", peer * part + i * ranks), None, ranks))
        steps.append(BlockStep("r", None, ("s", scratch), ranks, awaited=True))
    steps += [BlockStep("nop", count=0, depends=wait) for wait in arrivals[:-1]]
    for number in range(len(others)):
        depends = arrivals[-1] if number == 0 else None
        last = number == len(others) - 1
        steps.append(
            BlockStep("re", ("s", number * part + i * ranks + b), ("i", mine + b), depends=depends, awaited=last)
        )
    if peer is not None:
        ends = [(base + other, _sums_end(ranks, other == rank)) for other in range(ranks) if other != b]
        steps += [BlockStep("nop", count=0, depends=wait) for wait in ends[:-1]]
        steps.append(BlockStep("s", ("i", mine), None, ranks, depends=ends[-1]))
        steps.append(BlockStep("r", None, ("i", peer * part + i * ranks), ranks))
    return Threadblock(peer, peer, i, tuple(steps))


def _sums_end(ranks: int, own: bool) -> int:
    """Step of a threadblock's last sum: after send, receive, a nop for all but one other arrival, the other sums."""
    return ranks - 2 + ranks - 2 if own else 2 + ranks - 3 + ranks - 2


def ring_allreduce(ranks: int, channels: int, instances: int, protocol: str) -> CollectiveProgram:
    """One ring, in place: sums once around, copies once more; chunk k of every instance on channel k mod `channels`."""

    def step(rank: int, turn: int, i: int) -> BlockStep:
        at = ("i", (rank - turn) % ranks * instances + i)
        last = 2 * ranks - 2
        kinds = {0: "s", ranks - 1: "rrcs", last: "r"}
        kind = kinds.get(turn, "rrs" if turn < ranks - 1 else "rcs")
        return BlockStep(kind, at, at)  # type: ignore[arg-type]

    programs = tuple(
        RankProgram(ranks * instances, 0, 0, _ring(rank, ranks, 2 * ranks - 1, channels, instances, step))
        for rank in range(ranks)
    )
    name = f"ar_ring {channels}_{instances}"
    return _program(name, "allreduce", programs, ranks * instances, channels * instances, protocol)


def _program(
    name: str, collective: str, ranks: tuple[RankProgram, ...], loop: int, channels: int, protocol: str
) -> CollectiveProgram:
    return CollectiveProgram(name, collective, ranks, loop, channels, protocol, inplace=True, outofplace=False)


ALGORITHMS = {
    "ag_allpair": all_pairs_allgather,
    "ag_ring": ring_allgather,
    "ar_allpair": all_pairs_allreduce,
    "ar_ring": ring_allreduce,
}

Case = tuple[str, str, tuple[int, ...]]
"""Algorithm, protocol, and its numbers (instances, or channels and instances)."""

MI300X: dict[Case, tuple[float | None, ...]] = {
    ("ag_allpair", "LL", (1,)): (9.1, 10.5, 90, 1378, 21_800, 349_000),
    ("ag_allpair", "LL", (2,)): (7.0, 8.2, 47, 691, 11_000, 177_000),
    ("ag_allpair", "LL", (8,)): (8.5, 9.2, 16.9, 187, 2841, 45_400),
    ("ag_allpair", "Simple", (1,)): (10.7, 11.1, 24.1, 206, 3183, 50_800),
    ("ag_allpair", "Simple", (2,)): (10.6, 10.4, 18.0, 114, 1648, 25_900),
    ("ag_allpair", "Simple", (8,)): (10.9, 11.0, 13.5, 70, 955, 14_500),
    ("ag_ring", "LL", (1, 1)): (18.7, 43.9, 598, 9384, 150_000, 2_368_000),
    ("ag_ring", "LL", (8, 2)): (17.7, 23.5, 87, 820, 12_200, 195_000),
    ("ag_ring", "Simple", (1, 1)): (39.4, 40.9, 128, 1356, 21_600, 346_000),
    ("ag_ring", "Simple", (8, 1)): (34.9, 36.0, 100, 1069, 5833, 85_200),
    ("ag_ring", "Simple", (8, 2)): (35.6, 34.6, 69, 590, 5172, 79_700),
    ("ar_allpair", "LL", (1,)): (12.8, 20.2, 177, 2783, 45_100, 719_000),
    ("ar_allpair", "LL", (8,)): (18.6, 13.9, 32.5, 396, 6014, 95_600),
    ("ar_allpair", "Simple", (1,)): (19.9, 20.5, 49.4, 505, None, None),
    ("ar_allpair", "Simple", (4,)): (19.0, 20.7, 27.3, 187, None, None),
    ("ar_allpair", "Simple", (8,)): (18.6, 20.4, 25.3, 153, 2086, None),
}
"""Times at SIZES, us."""

HELD_OUT: frozenset[Case] = frozenset(
    {("ag_allpair", "LL", (2,)), ("ag_allpair", "Simple", (2,)), ("ag_ring", "Simple", (8, 2))}
    | {("ar_allpair", "Simple", (4,)), ("ar_allpair", "LL", (8,)), ("ar_allpair", "Simple", (8,))}
)

A100: dict[int, tuple[float, float]] = {
    2 * KIB: (16.4, 18.7),
    32 * KIB: (18.6, 31.7),
    512 * KIB: (32.2, 55.6),
    8 * MIB: (126.8, 154.4),
}
"""Times by size, us: the best MSCCL algorithm of the leaderboard, and NCCL."""

A100_CANDIDATES: tuple[Case, ...] = (
    ("ar_allpair", "LL", (1,)),
    ("ar_allpair", "LL", (4,)),
    ("ar_allpair", "Simple", (4,)),
    ("ar_ring", "LL", (8, 4)),
    ("ar_ring", "LL128", (8, 4)),
    ("ar_ring", "Simple", (8, 4)),
)


@cache
def program(case: Case) -> CollectiveProgram:
    algorithm, protocol, numbers = case
    made = ALGORITHMS[algorithm](8, *numbers, protocol)
    findings = check(made)
    assert not findings, findings[:3]
    return made


def fitted(case: Case, size: int) -> bool:
    return size in FITTED_SIZES and case not in HELD_OUT


def mi300x_rows(hardware: Hardware) -> Iterator[tuple[Case, int, float, float]]:
    """(case, size, predicted us, measured us) of every measured row."""
    for case, times in MI300X.items():
        for size, measured in zip(SIZES, times, strict=True):
            if measured is not None:
                yield case, size, simulate_xml(program(case), hardware, size).time_us, measured


def tables() -> Iterator[Table]:
    """Predicted times of MSCCL XML on MI300X and A100, compared with measured ones."""
    machine = load_hardware("mi300x")
    rows: list[Row] = []
    errors: dict[bool, list[float]] = {True: [], False: []}
    for case, size, predicted, measured in mi300x_rows(machine):
        errors[fitted(case, size)].append(predicted / measured)
        rows.append(
            {
                "algorithm": program(case).name,
                "protocol": case[1],
                "size": format_bytes(size),
                "predicted us": round(predicted, 1),
                "measured us": float(measured),
                "error %": round(100 * (predicted / measured - 1), 1),
                "row": "fit" if fitted(case, size) else "held out",
            }
        )
    notes = tuple(
        f"{'fitted' if fit else 'held-out'} rows: {len(ratios)}, mean error {_mean(ratios):.1f} %, "
        f"worst {_worst(ratios):+.1f} %"
        for fit, ratios in errors.items()
    )
    yield Table("eight MI300X, allgather and allreduce in place", rows, notes)
    yield _a100()


def _a100() -> Table:
    machine = load_hardware("ndv4")
    rows: list[Row] = []
    for size, (measured, nccl) in A100.items():
        found = [(simulate_xml(program(case), machine, size).time_us, case) for case in A100_CANDIDATES]
        predicted, case = min(found)
        rows.append(
            {
                "size": format_bytes(size),
                "best of ours": f"{program(case).name} {case[1]}",
                "predicted us": round(predicted, 1),
                "measured us": measured,
                "error %": round(100 * (predicted / measured - 1), 1),
                "NCCL us": nccl,
            }
        )
    note = "the leaderboard's algorithm is not known: the fastest of ours by prediction is shown; nothing held out"
    return Table("eight A100, allreduce in place", rows, (note,))


def _mean(ratios: list[float]) -> float:
    """Geometric mean of errors in %: twice too high counts as much as half."""
    return 100 * (math.exp(sum(abs(math.log(ratio)) for ratio in ratios) / len(ratios)) - 1)


def _worst(ratios: list[float]) -> float:
    return 100 * (max(ratios, key=lambda ratio: abs(math.log(ratio))) - 1)
