"""Encoders with error feedback, against the same algorithms written with PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.common import Row, Table, machine, progress
from benchmarks.compression.peers import PEERS, low_rank
from treadle.kernels.compression import PowerSGD, codec
from treadle.planner.machine.compressors import ALGORITHMS, compressor

ELEMENTS = 4 << 20
REPEATS, WARM = 9, 2


def tables() -> Iterator[Table]:
    """Encoders of 16 MiB of gradients on the CPU, against PyTorch's operators with as many threads."""
    threads = torch.get_num_threads()
    for count, clock, what in ((1, time.thread_time, "CPU time"), (threads, time.perf_counter, "time")):
        torch.set_num_threads(count)
        yield Table(
            f"encode 16 MiB with error feedback, threads: {count}, ms of {what}, least of {REPEATS} runs in turns",
            [measured(name, clock) for name in ALGORITHMS],
            (
                "published: with operators of PyTorch in the frame of GRACE; tightened: the same in place",
                "ratios: their time over ours; above 1 is faster. The peers' indices are not packed",
                f"plain: without a residual, and PyTorch's cast to the type; {machine()}",
            ),
        )


def measured(name: str, clock: Callable[[], float]) -> Row:
    progress(name)
    found = compressor(name)
    values, kept = torch.randn(ELEMENTS), found.kept(ELEMENTS) if found.algorithm.parameter == "ratio" else ELEMENTS
    residuals = [torch.zeros(ELEMENTS) for _ in range(3)]
    if name == "powersgd":
        power, peer = PowerSGD(name, ELEMENTS), low_rank(int(found.parameter), ELEMENTS)
        ours: Callable[[int], object] = lambda seed: power.second(power.first(values))  # noqa: E731
    else:
        made, peer = codec(name, ELEMENTS), PEERS[name]
        payload = torch.empty(made.wire_bytes, dtype=torch.uint8)
        ours = lambda seed: made.encode(values, payload, residuals[0], seed)  # noqa: E731
    works = [
        ours,
        lambda seed: peer.published(values, residuals[1], kept, seed),
        lambda seed: peer.tightened(values, residuals[2], kept, seed),
    ]
    if name in ("fp16", "bf16"):
        dtype = torch.float16 if name == "fp16" else torch.bfloat16
        works += [lambda seed: made.encode(values, payload, None, seed), lambda seed: values.to(dtype)]
    least = in_turns(works, clock)
    row: Row = {"compressor": found.name, "bytes": found.wire_bytes(ELEMENTS), "ours": least[0]}
    row |= {"published": least[1], "ratio": least[1] / least[0]}
    row |= {"tightened": least[2], "ratio to tightened": least[2] / least[0]}
    return row | ({"plain": least[3], "ratio to cast": least[4] / least[3]} if len(least) > 3 else {})


def in_turns(works: list[Callable[[int], object]], clock: Callable[[], float]) -> list[float]:
    """The least time of each in ms; other processes slow all of them alike."""
    least = [float("inf")] * len(works)
    for turn in range(REPEATS + WARM):
        for number, work in enumerate(works):
            start = clock()
            work(turn)
            if turn >= WARM:
                least[number] = min(least[number], (clock() - start) * 1e3)
    return least
