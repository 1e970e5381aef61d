"""A flat plan as the reduce-scatter of FSDP2: a unit of `fully_shard` exchanges what its gradients hold for the other
ranks. PyTorch has no other hook there (PyTorch issue 64665).

Gradients stay divided, so of a plan's steps those up to the sum are executed: compress, alltoall, decompress. A unit is
one buffer with one encode, whatever groups the plan makes of its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule

from treadle.planner.errors import InputError
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.runtime.agreement import agreed, agreed_on
from treadle.runtime.compression import setup
from treadle.runtime.compression.coders import Coders
from treadle.runtime.compression.group_run import Coder, Grid, GroupRun
from treadle.runtime.compression.handle import CompressedExchange, ExchangeStatistics
from treadle.runtime.scope_groups import ScopeGroups
from treadle.runtime.torch_names import reduce_scatter_single
from treadle.runtime.watch import NAMING_SECONDS, RankWatch, lost_rank, watch_of

WHERE = "treadle.compress.attach"


class FsdpExchange(CompressedExchange):
    """The units of a model that exchange payloads; those that the plan leaves as they are stay PyTorch's."""

    def __init__(self, coders: Coders, watch: RankWatch) -> None:
        self.coders, self.watch = coders, watch
        self.units: list[UnitReduceScatter] = []
        self.closed = False

    def state_dict(self) -> dict[str, Any]:
        return self.coders.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coders.load_state_dict(state)

    def statistics(self) -> ExchangeStatistics:
        sent = sum(sum(unit.run.sent_bytes) for unit in self.units if unit.run is not None)
        return ExchangeStatistics(self.coders.iterations, sent, (), self.coders.norms())

    def close(self) -> None:
        self.closed = True
        self.watch.close()


class UnitReduceScatter:
    """What `set_custom_reduce_scatter` of one unit is given: sums of a buffer with a part for each rank."""

    def __init__(
        self, owner: FsdpExchange, grid: Grid, steps: Sequence[str], names: Sequence[str], coders: Mapping[str, Coder]
    ) -> None:
        self.owner, self.grid, self.steps, self.names, self.coders = owner, grid, steps, names, coders
        self.run: GroupRun | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        mean = op == distributed.ReduceOp.AVG
        if not mean and op != distributed.ReduceOp.SUM:
            raise InputError(f"found {op} of the gradients of {self.names[0]!r}, expected a sum or a mean", where=WHERE)
        if self.owner.closed:
            reduce_scatter_single(output_tensor, input_tensor, op=distributed.ReduceOp.SUM, group=group)
        else:
            self._exchange(output_tensor, input_tensor, group)
        if mean:
            output_tensor.div_(self.grid.ranks("flat"))
        return None

    def _exchange(self, output: Tensor, tensor: Tensor, group: Any) -> None:
        if tensor.dtype != torch.float32:
            raise InputError(f"found {tensor.dtype} gradients of {self.names[0]!r}, expected float32 ones", where=WHERE)
        if self is self.owner.units[0]:
            self.owner.coders.iterations += 1
        if self.run is None:
            call = setup.call_of(ScopeGroups(flat=group, intra=None, inter=None))
            self.run = GroupRun(self.steps, tensor.numel(), self.grid, call, self.coders, tensor.device)
        self.run.flat.copy_(tensor)
        self.run.start(self.run.flat)
        try:
            for number in range(len(self.steps)):
                self.run.step(number)
        except RuntimeError as error:
            lost = self.owner.watch.lost_within(NAMING_SECONDS)
            raise error if lost is None else lost_rank(lost) from None
        assert self.run.values is not None
        output.copy_(self.run.values)


def attach_fsdp(model: nn.Module, decisions: CompressionDecisions, coders: Coders) -> FsdpExchange:
    """Exchange the gradients of a model of `fully_shard` as decided. All ranks call it together.

    Raises InputError, on all ranks alike, for a plan that is not for these ranks or parameters, not flat, or differs
    between ranks; for shards over part of the ranks; and for a version of PyTorch without `set_custom_reduce_scatter`.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}

    def checked() -> tuple[Grid, list[tuple[Any, list[str], GradientGroup | None]]]:
        grid = setup.grid_of(decisions, None)
        setup.check_parameters(decisions, parameters)
        for name, parameter in parameters.items():
            mesh: Any = getattr(parameter, "device_mesh", None)
            if mesh is None or mesh.ndim != 1 or mesh.size() != grid.ranks("flat"):
                raise InputError(f"found {name!r} on part of the ranks, expected shards on all of them", where=WHERE)
        units = units_of(model, parameters)
        return grid, [(each, names, half_of(decisions, unit, names)) for unit, (each, names) in units.items()]

    def made() -> list[dict[str, Coder]]:
        device = next(iter(parameters.values())).device
        return [{} if half is None else setup.coders_of(half, names, coders.coder, device) for _, names, half in units]

    grid, units = agreed_on(checked, decisions)
    coded = agreed(made)
    owner = FsdpExchange(coders, watch_of(distributed.group.WORLD, lambda rank: None))
    for (module, names, half), each in zip(units, coded, strict=True):
        if half is not None:
            owner.units.append(UnitReduceScatter(owner, grid, half.steps, names, each))
            module.set_custom_reduce_scatter(owner.units[-1])
    return owner


def units_of(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, tuple[Any, list[str]]]:
    """Each unit with the names of its own parameters, by its name within the model."""
    modules = {name: each for name, each in model.named_modules() if isinstance(each, FSDPModule)}
    found: dict[str, tuple[Any, list[str]]] = {}
    for name in parameters:
        inside = [prefix for prefix in modules if not prefix or name.startswith(f"{prefix}.")]
        if not inside:
            raise InputError(f"found {name!r} outside of fully_shard, expected it in a unit", where=WHERE)
        prefix = max(inside, key=len)
        if not hasattr(modules[prefix], "set_custom_reduce_scatter"):
            raise InputError(
                f"found PyTorch {torch.__version__}, expected one with FSDPModule.set_custom_reduce_scatter",
                where=WHERE,
            )
        found.setdefault(prefix, (modules[prefix], []))[1].append(name)
    return found


def half_of(decisions: CompressionDecisions, unit: str, names: Sequence[str]) -> GradientGroup | None:
    """What a unit does up to its sum, None where it sends gradients as they are."""
    gradients = decisions.problem.gradients
    groups = [
        group
        for group in decisions.groups
        if any(gradient.name in names for gradient in gradients[group.first : group.last + 1])
    ]
    first = groups[0]
    for group in groups:
        if any(not step.endswith("@flat") for step in group.steps if "compress@" not in step):
            raise unfit(unit, " ".join(group.steps), "flat steps")
        if (group.compressor, group.steps) != (first.compressor, first.steps):
            raise unfit(unit, "several compressors or options", "the same for all of its gradients")
    if first.compressor is None:
        return None
    if not (first.steps[0].startswith("compress@") and first.steps[1] == "alltoall@flat"):
        raise unfit(unit, " ".join(first.steps), "a compress with an alltoall after it")
    decompress = next(step for step in first.steps if step.startswith("decompress@"))
    return GradientGroup(
        first=first.first, last=first.last, compressor=first.compressor, steps=(*first.steps[:2], decompress)
    )


def unfit(unit: str, found: str, expected: str) -> InputError:
    text = f"found {found} for the unit {unit or 'of the model'!r}, expected {expected}"
    return InputError(f"{text}: FSDP2 has a hook for its reduce-scatter only (PyTorch issue 64665)", where=WHERE)
