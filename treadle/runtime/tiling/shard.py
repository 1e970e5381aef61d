"""Train a model whose tensors are cut over workers by a plan: `treadle.shard(model, plan)`.

Parameters and buffers become DTensors in the plan's tilings, which optimizers and `state_dict` know. The step itself is
the generated text (`treadle.codegen.tiling.dtensor_model`), which computes on the tiles of this worker and moves them
where the plan says, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from treadle.codegen.tiling.dtensor_model import step_text
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.called import inputs_of
from treadle.runtime.planned_module import Flight, PlannedModule
from treadle.runtime.planned_step import PlannedStep, names_of, step_of
from treadle.runtime.sources import plan_and_trace
from treadle.runtime.tiling.collectives import Mesh, placements, workers
from treadle.runtime.wrappers import require_unwrapped

CALLER = "treadle.shard"
TARGET = "dtensor"


def shard(model: nn.Module, plan: Plan | Path | str, trace: Trace | Path | str | None = None) -> ShardedModule:
    """`model` as a module that trains cut over the processes of torch.distributed, as `plan` says; call it on each.

    Parameters and buffers of `model` itself become DTensors with the values of rank 0, so make the optimizer after this
    call. The result is called like the step that was captured, on each worker with the whole batch, its own part of it,
    or DTensors in the plan's tilings. `backward` leaves gradients in the tilings of their parameters. Outputs that are
    cut come as DTensors, others as plain tensors. `trace` defaults to the file that the plan names, next to the plan's
    own file. Random ops of a step draw what one process would draw: seed all processes alike.

    Raises InputError for a plan of another pass or another trace, another number of processes than the mesh has
    workers, and a model other than the captured one; CheckFailed for a plan that fails its check. Calls raise
    InputError for inputs and modes that the plan does not cover.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"found a model of type {type(model).__name__}, expected a torch.nn.Module", where=CALLER)
    require_unwrapped(model, CALLER)
    document, known = plan_and_trace(plan, trace, CALLER, TilingDecisions)
    return sharded(model, step_text(document.decisions, known), known.name)


def sharded(model: nn.Module, text: str, name: str) -> ShardedModule:
    """`model` under the generated step `text`, which errors call `name`. Raises as `shard`."""
    names = names_of(TARGET, text, name)
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    wanted = workers(names["MESH"])
    if world != wanted:
        mesh = " x ".join(str(size) for _, size in names["MESH"])
        text = f"found {world} processes of torch.distributed, expected {wanted}, the workers of the mesh {mesh}"
        raise InputError(text, where=name)
    device = next((leaf.device for leaf in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    axes, sizes = zip(*names["MESH"], strict=True)
    return ShardedModule(model, names, text, name, init_device_mesh(device.type, sizes, mesh_dim_names=axes))


class ShardedModule(PlannedModule):
    """A model of DTensors and the generated step that computes it. Its `state_dict` is that of the model."""

    def __init__(self, model: nn.Module, names: dict[str, Any], text: str, name: str, mesh: DeviceMesh) -> None:
        step = step_of({**names, "HANDED": names["GRADIENTS"][-1:]}, text, name)
        self.tilings: dict[str, list[str]] = names["TILINGS"]
        bound = Mesh(mesh)
        cut = replace(step, forward=partial(step.forward, bound), backward=partial(step.backward, bound))
        require_cuttable(model, cut)
        distribute(model, mesh, self.tilings)
        super().__init__(model, cut)
        self.mesh = bound

    def flight(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]) -> Flight:
        leaves = {**parameters, **{f"input {place}": tensor for place, tensor in enumerate(inputs)}}
        with torch.no_grad():
            return TiledFlight(
                self.step,
                {name: tile_of(tensor) for name, tensor in parameters.items()},
                {name: tile_of(tensor) for name, tensor in buffers.items()},
                [tile_of(tensor) for tensor in inputs],
                mesh=self.mesh,
                tilings=self.tilings,
                leaves=leaves,
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.of_inputs(inputs_of(self.step.called, len(self.step.inputs), args, kwargs, self.step.name))

    def of_inputs(self, inputs: Sequence[Any]) -> Any:
        """What the step returns of its inputs in the order of the trace."""
        return self.computed([self._placed(place, tensor) for place, tensor in enumerate(inputs)])

    def _placed(self, place: int, tensor: Any) -> Any:
        """Input number `place` as a DTensor in its tiling."""
        if not isinstance(tensor, Tensor):
            return tensor  # refused with all others
        tiling, (_, shape, _) = self.tilings[f"input {place}"], self.step.inputs[place]
        wanted, what = tuple(placements(tiling)), self.step.places[place]
        if isinstance(tensor, DTensor):
            if tensor.placements != wanted or tensor.device_mesh != self.mesh.mesh:
                text = f"found {what} in {tensor.placements}, expected {wanted} on the mesh of the plan"
                raise InputError(text, where=self.step.name)
            return tensor
        if tensor.requires_grad:
            raise InputError(f"found {what} requiring a gradient, expected a DTensor for that", where=self.step.name)
        if list(tensor.shape) == shape:
            tile, stride = self.mesh.tile(tensor, tiling), tensor.stride()
            return DTensor.from_local(tile, self.mesh.mesh, wanted, run_check=False, shape=tensor.shape, stride=stride)
        tiled = DTensor.from_local(tensor, self.mesh.mesh, wanted, run_check=False)
        return tiled if list(tiled.shape) == shape else tensor


@dataclass(eq=False, kw_only=True)
class TiledFlight(Flight):
    """A step on tiles, which takes and gives DTensors."""

    mesh: Mesh
    tilings: dict[str, list[str]]
    leaves: dict[str, Tensor]

    def forward(self) -> list[Tensor]:
        outputs = super().forward()
        return [self._given(tile, self.tilings[f"output {place}"]) for place, tile in enumerate(outputs)]

    def start(self, gradients: Sequence[Tensor | None]) -> None:
        found = list(gradients)
        for number, place in enumerate(self.step.tangents):
            gradient, wanted = found[place], self.tilings[f"tangent {number}"]
            if isinstance(gradient, DTensor):
                found[place] = gradient.redistribute(self.mesh.mesh, placements(wanted)).to_local()
            elif gradient is not None:
                found[place] = self.mesh.tile(gradient, wanted)
        super().start(found)

    def up_to(self, names: Sequence[str]) -> list[Tensor | None]:
        tiles = super().up_to(names)
        return [
            None if tile is None else self._like(tile, self.leaves[name])
            for name, tile in zip(names, tiles, strict=True)
        ]

    def _like(self, tile: Tensor, leaf: Tensor) -> Tensor:
        assert isinstance(leaf, DTensor)
        return DTensor.from_local(
            tile, leaf.device_mesh, leaf.placements, run_check=False, shape=leaf.shape, stride=leaf.stride()
        )

    def _given(self, tile: Tensor, tiling: list[str]) -> Tensor:
        if all(placement == "R" for placement in tiling):
            return tile
        return DTensor.from_local(tile, self.mesh.mesh, placements(tiling), run_check=False)


def tile_of(tensor: Tensor) -> Tensor:
    """This worker's tile of a DTensor; a plain tensor is one itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def require_cuttable(model: nn.Module, step: PlannedStep) -> None:
    """Raises InputError for a model with other parameters and buffers than the captured one."""
    from treadle.runtime.coverage import require_alike

    require_alike(step, "parameter", dict(model.named_parameters()), step.parameters)
    require_alike(step, "buffer", dict(model.named_buffers()), step.buffers)


def distribute(model: nn.Module, mesh: DeviceMesh, tilings: dict[str, list[str]]) -> None:
    """Put DTensors with the values of rank 0 in the place of all parameters and buffers; shared ones stay shared."""
    made: dict[int, Tensor] = {}
    for prefix, module in model.named_modules():
        for kept, kind in ((module._parameters, nn.Parameter), (module._buffers, None)):
            for name, tensor in kept.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    tiling = tilings[f"{prefix}.{name}" if prefix else name]
                    tiled: Tensor = distribute_tensor(tensor.detach(), mesh, placements(tiling))
                    made[id(tensor)] = nn.Parameter(tiled, tensor.requires_grad) if kind else tiled
                kept[name] = made[id(tensor)]
