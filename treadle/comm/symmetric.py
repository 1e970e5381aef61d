"""Plans that were priced for symmetric memory, on the GPUs of one host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from treadle.comm.library import LoadedAlgorithm, named
from treadle.runtime import agreement
from treadle.runtime.collective.symmetric import Exchange, SymmetricBuffers, SymmetricKernels, SymmetricRank

MOST_BYTES = 64 << 20
"""The largest tensor of a call above which a plan goes through slots all the same: buffers would take twice as much."""


def carried(algorithm: LoadedAlgorithm, call_bytes: int, timeout: float = 0) -> LoadedAlgorithm:
    """The algorithm as calls of `call_bytes` run it: by its program where those are too large, and where a `timeout`
    in seconds is set, which only kernels with slots report by name."""
    fits = call_bytes <= MOST_BYTES and not timeout
    return algorithm if fits or algorithm.switched else replace(algorithm, symmetric=None)


def key_of(algorithm: LoadedAlgorithm) -> str:
    """The name of what runs it: an algorithm may have two, for small and for large calls."""
    return algorithm.name if algorithm.symmetric is None else f"{algorithm.name} over symmetric memory"


def buffers_on(device: torch.device, arch: str, first: bool, group: Any) -> SymmetricBuffers:
    """Buffers for all algorithms of `group`, with the kernels for GPUs of `arch`, which the `first` rank compiles. A
    collective call; raises InputError or MissingBackendError on all ranks when one cannot."""
    agreement.agreed(lambda: SymmetricKernels("cuda", arch) if first else None, group)
    return SymmetricBuffers(agreement.agreed(lambda: SymmetricKernels("cuda", arch), group), device, group)


def member_of(algorithm: LoadedAlgorithm, buffers: SymmetricBuffers) -> SymmetricRank:
    """What runs the algorithm on this rank. A collective call; raises InputError or MissingBackendError on all ranks
    where their GPUs have no symmetric memory."""
    shots = algorithm.symmetric
    assert shots is not None
    return SymmetricRank(buffers, Exchange(named(algorithm), shots, algorithm.program.root or 0))
