"""Exchanges of sparse gradients as PyTorch has them, to compare plans with.

SparCML, OmniReduce and dense allreduce are also schemes of our own executor: plans that are made to use them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, distributed

Peer = Callable[[Tensor], Tensor]


def sparse_allreduce(gradient: Tensor) -> Tensor:
    """The sum of COO gradients over all ranks, coalesced: what DistributedDataParallel does for `sparse=True`. gloo
    gathers the entries of all ranks, padded to the most of any, and adds them up."""
    found = gradient.coalesce()
    distributed.all_reduce(found)
    return found.coalesce()


def dense_allreduce(gradient: Tensor) -> Tensor:
    """The sum of COO gradients over all ranks as a dense tensor, by gloo's allreduce."""
    found = gradient.to_dense()
    distributed.all_reduce(found)
    return found


PEERS: dict[str, Peer] = {"torch, sparse": sparse_allreduce, "torch, dense": dense_allreduce}
