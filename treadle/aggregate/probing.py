"""A quick probe of the links of a running job: every two hosts exchange a message, no host in two pairs at once."""

from __future__ import annotations

import time
from math import nan
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.probe.schedule import circle

REPEATS = 3
"""Messages of a pair, the fastest of which counts: whatever else a host does only makes them slower."""


def probed(group: Any, message_bytes: int, slots: int) -> list[float]:
    """Bytes per second with each rank of `group` while all pairs of a round exchange `message_bytes`; NaN to itself,
    and to and from all but the first of the `slots` ranks of a host. All ranks call it."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    rates = [nan] * ranks
    sent, received = torch.zeros(message_bytes, dtype=torch.uint8), torch.empty(message_bytes, dtype=torch.uint8)
    for pairs in circle(range(ranks // slots)):
        distributed.barrier(group)
        other = dict((*pairs, *((b, a) for a, b in pairs))).get(rank // slots)
        if other is None or rank % slots:
            continue
        rates[other * slots] = max(_rate(group, other * slots, sent, received) for _ in range(REPEATS))
    return rates


def _rate(group: Any, other: int, sent: Tensor, received: Tensor) -> float:
    start = time.perf_counter()
    ends = [
        distributed.isend(sent, group=group, group_dst=other),
        distributed.irecv(received, group=group, group_src=other),
    ]
    for end in ends:
        assert end is not None
        end.wait()
    return len(sent) / (time.perf_counter() - start)
