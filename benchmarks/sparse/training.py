"""One rank of the lab benchmark: exchanges of the gradients of batches, and training, with each exchange in turns."""

# Annotations stay what they are, not text: DistributedDataParallel looks at them.
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.sparse.peers import PEERS
from benchmarks.sparse.turns import Work, in_turns
from examples.models import dlrm, embedding_lm
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.passes import require_pass
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import BY_NAME
from treadle.planner.passes.sparse.traffic import busiest, traffic
from treadle.runtime.sparse.exchange import SparseExchange
from treadle.sparse import attach

SEED, BATCHES = 1, 8
NOTHING, SPARSE, DENSE = "no exchange", "DDP, sparse=True", "DDP, dense"
Batch = tuple[Tensor, ...]
MODELS: dict[str, tuple[Any, Callable[[], Batch]]] = {
    "dlrm": (dlrm, partial(dlrm.samples, dlrm.REDUCED, 64, 4)),
    "embedding_lm": (embedding_lm, partial(embedding_lm.samples, embedding_lm.REDUCED, 8, 20, 256)),
}


def batches(model: str, rank: int) -> list[Batch]:
    """Those of a rank, which it trains on over and over."""
    torch.manual_seed(1000 + rank)
    return [MODELS[model][1]() for _ in range(BATCHES)]


def built(model: str, *, sparse: bool = True) -> tuple[nn.Module, Callable[..., Tensor]]:
    """The model, the same on all ranks, and its loss."""
    torch.manual_seed(SEED)
    made, _, loss = MODELS[model][0].reduced(batch=1, sparse=sparse)
    return made, loss


def main(model: str, seconds: float, plans: Sequence[str]) -> None:
    """Print from rank 0, as JSON: ms of an exchange of all sparse gradients and of an iteration, by exchange, medians
    of the slowest rank, and bytes that ranks sent and should have."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    decided = {Path(plan).stem: _decisions(plan) for plan in plans}
    given = batches(model, distributed.get_rank())
    gradients = list(sparse_gradients(model, given))
    exchanges = {name: SparseExchange(decisions) for name, decisions in decided.items()}
    works: dict[str, Work] = {name: partial(_planned, each, gradients) for name, each in exchanges.items()}
    works |= {name: partial(_by_peer, peer, gradients) for name, peer in PEERS.items()}
    exchanged = in_turns(works, seconds / 3)
    counted = {name: _bytes(exchanges[name], decided[name], gradients) for name in decided}
    steps: dict[str, Work] = {
        NOTHING: _training(model, given, lambda wrapped: wrapped.register_comm_hook(None, unsent)),
        SPARSE: _training(model, given, lambda wrapped: None),
        DENSE: _training(model, given, lambda wrapped: None, sparse=False),
        **{Path(plan).stem: _training(model, given, partial(attach, plan=plan)) for plan in plans},
    }
    trained = in_turns(steps, seconds)
    if distributed.get_rank() == 0:
        print(json.dumps({"exchange": exchanged, "step": trained, "bytes": counted}))
    distributed.destroy_process_group()


def _decisions(plan: str) -> SparseDecisions:
    return require_pass(store.load(plan, Plan), SparseDecisions, plan).decisions


def sparse_gradients(model: str, given: Sequence[Batch]) -> Iterator[dict[str, Tensor]]:
    """COO gradients of each batch by parameter, as the backward pass makes them."""
    made, loss = built(model)
    for batch in given:
        made.zero_grad()
        loss(made, *batch).backward()
        found = {name: parameter.grad for name, parameter in made.named_parameters()}
        yield {
            name: gradient.detach() for name, gradient in found.items() if gradient is not None and gradient.is_sparse
        }


def _planned(exchange: SparseExchange, gradients: Sequence[dict[str, Tensor]], turn: int) -> None:
    exchange.exchange_together(gradients[turn % BATCHES])


def _by_peer(peer: Callable[[Tensor], Tensor], gradients: Sequence[dict[str, Tensor]], turn: int) -> None:
    for gradient in gradients[turn % BATCHES].values():
        peer(gradient)


def _bytes(
    exchange: SparseExchange, decisions: SparseDecisions, gradients: Sequence[dict[str, Tensor]]
) -> dict[str, Any]:
    """Bytes that all ranks sent for a batch, and what its index sets say, to the byte for every rank if `same`; what
    the busiest rank has of them, added up over rounds, and what is planned for it."""
    sent = counted = busy = 0
    same = True
    exchange.exchange_together(gradients[0])
    for plan, gradient in zip(decisions.gradients, decisions.problem.gradients, strict=True):
        mine = exchange.last[plan.name].sent(), gradients[0][plan.name].coalesce().indices()[0].numpy()
        reported: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(reported, mine)
        played = traffic(
            BY_NAME[plan.scheme],
            [units for _, units in reported],
            gradient.units,
            gradient.width,
            seed=decisions.seeds[0],
            block=gradient.blocks.size if gradient.blocks else 1,
        )
        by_rank = [sum(each) for each in zip(*(each.sent for each in played), strict=True)]
        same &= by_rank == [bytes_sent for bytes_sent, _ in reported]
        sent += sum(bytes_sent for bytes_sent, _ in reported)
        counted += sum(by_rank)
        busy += busiest(played)
    planned = sum(cost.bytes for plan in decisions.gradients for cost in plan.costs if cost.scheme == plan.scheme)
    return {"sent": sent, "counted": counted, "same": same, "busiest": busy, "planned": planned}


def _training(
    model: str, given: Sequence[Batch], exchange: Callable[[DistributedDataParallel], object], *, sparse: bool = True
) -> Work:
    """Forward, backward, exchange and update of a model of its own."""
    made, loss = built(model, sparse=sparse)
    wrapped = DistributedDataParallel(made)
    exchange(wrapped)
    optimizer = torch.optim.SGD(made.parameters(), 0.01)

    def iterate(turn: int) -> None:
        optimizer.zero_grad()
        loss(wrapped, *given[turn % BATCHES]).backward()
        optimizer.step()

    return iterate


def unsent(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook that leaves gradients as they are."""
    future = torch.futures.Future[Tensor]()
    future.set_result(bucket.buffer())
    return future


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
