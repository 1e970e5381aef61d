"""`treadle.sparse.record`: index sets of a model's gradients while it trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.documents import store
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparsity import Sparsity, Unit
from treadle.planner.errors import InputError
from treadle.probe.index_sets import RecordedSets, RecordedTensor, save_sets
from treadle.probe.sparsity import sparsity_of
from treadle.sparse.gradients import MOSTLY_DENSE, GradientUnits, indices_of, is_dense, units_of

R = TypeVar("R")
CALLER = "treadle.sparse.record"
Sets = list[NDArray[np.int32]]
OfRank = tuple[str, dict[str, GradientUnits], dict[str, Sets], int]
"""Name of the model, its recorded parameters, their sets, and how many steps."""
EMPTY = np.empty(0, np.int32)


class SparsityRecording:
    """Index sets of the gradients of one model, for up to `steps` backward passes from now on.

    It sees what each backward pass of this rank computed, before gradients are exchanged or added to earlier ones.
    """

    def __init__(self, model: nn.Module, steps: int, unit: Unit | None) -> None:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        self.name = type(inner).__name__
        self.steps = steps
        self.recorded_steps = 0
        """Backward passes so far."""
        self.left_out: dict[str, str] = {}
        """Parameters that are not recorded, and why."""
        self._unit = unit
        self._units: dict[str, GradientUnits] = {}
        self._sets: dict[str, Sets] = {}
        self._in_pass = False
        self._recorded: RecordedSets | None = None
        self._is_gathered = False
        self._hooks = {
            name: parameter.register_hook(partial(self._saw, name))
            for name, parameter in inner.named_parameters()
            if parameter.requires_grad
        }
        if not self._hooks:
            raise InputError("found no parameter that is trained", where=CALLER)

    @property
    def is_complete(self) -> bool:
        """Whether all steps are recorded."""
        return self.recorded_steps == self.steps

    def close(self) -> None:
        """Record no more. A recording closes on its own after its last step."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        for name, units in list(self._units.items()):
            if is_dense(units, sum(map(len, self._sets[name])) / max(1, self.recorded_steps)):
                self.left_out[name] = MOSTLY_DENSE
                del self._units[name], self._sets[name]

    def document(self) -> Sparsity | None:
        """How sparse the gradients are. All ranks call it together; None on all but rank 0.

        Raises InputError where nothing was recorded.
        """
        return self._on_first_rank(sparsity_of)

    def save(self, path: Path | str) -> None:
        """Write `document()`, on rank 0. All ranks call it together. Raises InputError as `document`."""
        self._on_first_rank(lambda recorded: store.save(sparsity_of(recorded), path))

    def save_sets(self, path: Path | str) -> None:
        """Write the index sets, on rank 0: an archive of NumPy into `.npz`, else a document. All ranks call it
        together. Raises InputError as `document`."""
        self._on_first_rank(lambda recorded: save_sets(recorded, path))

    def _saw(self, name: str, gradient: Tensor) -> None:
        sets = self._sets.get(name, [])
        # A second gradient within one pass: the pass before failed before its end, and does not count.
        if not self._in_pass or len(sets) > self.recorded_steps:
            self._in_pass = True
            Variable._execution_engine.queue_callback(self._end_pass)
        if name not in self._units:
            found = units_of(gradient, self._unit)
            if isinstance(found, str):
                self.left_out[name] = found
                self._hooks.pop(name).remove()
                return
            self._units[name] = found
        units, sets = self._units[name], self._sets.setdefault(name, sets)
        sets += [EMPTY] * (self.recorded_steps - len(sets))
        sets[self.recorded_steps :] = [indices_of(gradient, units)]

    def _end_pass(self) -> None:
        self._in_pass = False
        self.recorded_steps += 1
        if self.is_complete or not self._hooks:
            self.close()

    def _on_first_rank(self, use: Callable[[RecordedSets], R]) -> R | None:
        """`use` of all sets on rank 0; the others get None. The sets are gathered once."""
        self.close()
        if not self._is_gathered:
            own = (self.name, self._units, self._sets, self.recorded_steps)
            everything = _on_first(own)
            self._is_gathered = True
            self._recorded = None if everything is None else _joined(everything)
        return None if self._recorded is None else use(self._recorded)


def _on_first(own: OfRank) -> list[OfRank] | None:
    """What all ranks have, on rank 0; None on the others."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return [own]
    into: list[Any] | None = [None] * distributed.get_world_size() if distributed.get_rank() == 0 else None
    distributed.gather_object(own, into)
    return into


def _joined(ranks: list[OfRank]) -> RecordedSets:
    """The sets of all ranks, of the tensors that all of them recorded. Raises InputError if there is none."""
    steps = min(done for *_, done in ranks)
    name, units, _, _ = ranks[0]
    kept = [each for each in units if all(units[each] == other.get(each) for _, other, _, _ in ranks)]
    if not steps or not kept:
        found = "no sparse gradient" if steps else "no backward pass"
        raise InputError(f"found {found} to record", where=CALLER)
    tensors = []
    for each in kept:
        of_ranks = [(sets[each] + [EMPTY] * steps)[:steps] for _, _, sets, _ in ranks]
        known = units[each]
        sets = tuple(zip(*of_ranks, strict=True))
        tensors.append(RecordedTensor(each, known.form, known.unit, known.units, known.width, sets))
    source = f"recorded, {many(steps, 'step')} of {many(len(ranks), 'rank')}"
    return RecordedSets(name, tuple(tensors), {"tensors": source})


def record(model: nn.Module, steps: int = 50, *, unit: Unit | None = None) -> SparsityRecording:
    """Record which units of the gradients of `model` are not zero, in its next `steps` backward passes.

    `model` may be one of DistributedDataParallel; then all ranks record, each its own gradients. Gradients are COO
    (`sparse=True` of embeddings) or dense; a dense one of which over half is not zero at first is left out. `unit`
    None: rows of COO gradients and of matrices that are zero by rows, else elements.

    Raises InputError for fewer than one step and for a model without trained parameters.
    """
    if steps < 1:
        raise InputError(f"found {steps} steps, expected at least 1", where=CALLER)
    if unit not in (None, "row", "element"):
        raise InputError(f"found the unit {unit!r}, expected 'row' or 'element'", where=CALLER)
    return SparsityRecording(model, steps, unit)
