"""The sparsity of a job's gradients: the first steps of its ranks, one after the other in this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from msgspec.structs import replace
from torch import Tensor

from treadle.job.train import TrainingTask, batch_of
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparsity import Sparsity, TensorSparsity, UnionCount
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.job import OTHERS
from treadle.probe.index_sets import RecordedSets, RecordedTensor
from treadle.probe.sparsity import sparsity_of
from treadle.runtime.sparse.attached import table_names
from treadle.runtime.training import loss_of

STEPS, MOST_RANKS = 4, 8
"""Recorded steps, and ranks; what more ranks have in common is extrapolated."""


def recorded_sparsity(task: TrainingTask, world: int, say: Callable[[str], None]) -> Sparsity:
    """How the gradients of the model's embeddings are on the batches that the ranks train on, and how many elements all
    others have. Raises InputError for a model without embeddings that take a gradient."""
    ranks = min(world, MOST_RANKS)
    whence = f"{many(STEPS, 'step')} of {many(ranks, 'rank')}"
    say(f"record sparse gradients of {whence}")
    rows: dict[str, list[list[Tensor]]] = defaultdict(lambda: [[] for _ in range(STEPS)])
    for step in range(STEPS):
        for rank in range(ranks):
            batch = batch_of(task, rank, world, step)
            loss_of(batch.run()).backward()
            names = table_names(batch.model)
            held = {name: each for name, each in batch.model.named_parameters() if each.requires_grad}
            tables = {name: each.grad for name, each in held.items() if name in names and each.grad is not None}
            for name, gradient in tables.items():
                rows[name][step].append(gradient.any(1).nonzero().view(-1).int())
    if not rows:
        raise InputError("found no embedding that takes a gradient, expected one", where=task.model)
    tensors = tuple(_recorded(name, tables[name], steps) for name, steps in rows.items())
    found = sparsity_of(RecordedSets(task.model, tensors, {"tensors": f"{whence} of the job"}))
    elements = sum(each.numel() for name, each in held.items() if name not in tables)
    return found if not elements else _with_others(found, elements)


def _recorded(name: str, table: Tensor, steps: list[list[Tensor]]) -> RecordedTensor:
    sets = tuple(tuple(each.numpy() for each in step) for step in steps)
    return RecordedTensor(name, "dense", "row", table.shape[0], table.shape[1], sets)


def _with_others(found: Sparsity, elements: int) -> Sparsity:
    """One more gradient, of which no element is zero."""
    participants = [union.participants for union in found.tensors[0].unions]
    others = TensorSparsity(
        name=OTHERS,
        form="dense",
        unit="element",
        units=elements,
        width=1,
        sets=found.tensors[0].sets,
        occurrences=elements,
        unions=tuple(UnionCount(participants=m, mean=elements, most=elements) for m in participants),
    )
    return replace(found, tensors=(*found.tensors, others))
