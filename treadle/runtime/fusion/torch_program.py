"""A fused schedule as a PyTorch function: modules that treadle generates for a program derive from it.

It compiles the schedule for the given sizes, joins the ranks of a process group, keeps what kernels need besides the
caller's tensors (temporaries, scalars, bucket tables, arenas), and runs. What is sliced is passed as this rank's slice;
`full_state` and `sliced_state` turn state into what every schedule and every number of ranks understands, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from treadle.codegen.emit import text_digest
from treadle.codegen.fusion.algorithms import ProgramFactory
from treadle.codegen.fusion.context import Protocol
from treadle.codegen.fusion.kernel import Buffer
from treadle.codegen.fusion.library import Call
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.codegen.fusion.scattered import BucketIndex, addresses, header, index_of
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.buckets import bucket_table
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Program, TensorType
from treadle.planner.passes.fusion.slice_maps import capacity, global_indices, local_shape
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.hosts import join
from treadle.runtime.fusion.session import FusionSession

TORCH: dict[Dtype, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
Given = torch.Tensor | float | Sequence[torch.Tensor]


class FusedProgram:
    """`schedule` is the text of the program with its kernels.

    group: ranks that run it, all of torch.distributed by default; as many as `groups` times the ranks of one.
    parts: by dimension, the sizes of the tensors that it stands for. `scattered` names inputs that are passed as lists
    of such tensors. `device`: where the tensors lie. Raises InputError for what the schedule does not allow, and on all
    ranks where one of them has another program, other sizes or other choices.
    """

    schedule: ClassVar[str]
    by_library: ClassVar[tuple[str, ...]] = ()
    """Products that PyTorch makes."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        extents: Mapping[str, int],
        parts: Mapping[str, tuple[int, ...]] | None = None,
        groups: int = 1,
        device: torch.device | str = "cpu",
        scattered: Sequence[str] = (),
        protocol: Protocol = "Simple",
        channels: int = 1,
        algorithm: str | ProgramFactory = "ring",
        seed: int = 0,
        timeout: float = 0,
    ) -> None:
        self.group, self.device, self.seed, self.step, self.timeout = group, torch.device(device), seed, 0, timeout
        self.world, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if self.world % groups:
            raise InputError(f"found {self.world} ranks for {groups} groups, expected as many in each")
        bindings = Bindings(extents, self.world // groups, groups, dict(parts or {}))
        self.lowered: Lowered = lower(
            parse(self.schedule, type(self).__name__),
            bindings,
            protocol=protocol,
            channels=channels,
            algorithm=algorithm,
            scattered=scattered,
            by_library=self.by_library,
        )
        self._require_agreement()
        self.scattered = frozenset(scattered)
        self._kept: dict[str, torch.Tensor] = {}
        self._tables: dict[str, tuple[list[int], list[torch.Tensor]]] = {}
        self._bound: list[int] = []
        self._session = self._joined() if any(self.lowered.launches) else None

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    def place(self) -> int:
        """The rank in its group of the program."""
        return self.rank % self.lowered.bindings.ranks

    def run(self, **given: Given) -> Any:
        """One run with these inputs: tensors, numbers for scalars, lists for scattered tensors.

        The outputs: one, or a tuple. What an Update writes is written in place, and is the tensor that was given. On a
        GPU the work is queued on the current stream, and outputs are the same tensors in every run. Each run is one
        step of dropout. A run can be captured in a CUDA graph after one with the same tensors: replays count as runs,
        but keep the numbers and the step of dropout that were captured, so pass scalars that change as tensors.
        """
        missing = [value.name for value in self.program.inputs if value.name not in given]
        if missing:
            raise InputError(f"{self.program.name}: found no {', '.join(missing)}, expected all of its inputs")
        held = [self._held(buffer, given) for buffer in self.lowered.buffers]
        pointers = [tensor.data_ptr() for tensor in held]
        session = self._session
        if session is not None and pointers != self._bound:
            session.bind({self.rank: pointers}, keep=held)
            self._bound = pointers
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        streams = [stream] * self.world if self.device.type == "cuda" else None
        for each in self.lowered.runs:
            if isinstance(each, Call):
                self._multiplied(each, held)
            elif session is not None:
                session.run(seed=self.seed, step=self.step, timeout=self.timeout, streams=streams, launches=each)
                if streams is None:
                    session.wait()
        self.step += 1
        outputs = [self._returned(name, held, given) for name in self.program.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    # State.

    def full_state(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The global tensors by the names of inputs: slices of all ranks joined in the order of the whole."""
        return {name: self._joined_slices(name, tensor) for name, tensor in state.items()}

    def sliced_state(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This rank's part, under this schedule, of global tensors by the names of inputs."""
        return {name: self._slice(name, tensor) for name, tensor in state.items()}

    def state_dict_hook(self, names: Mapping[str, str]) -> Callable[..., None]:
        """For `torch.nn.Module.register_state_dict_post_hook`: entries of a state dict, by the input that each is, are
        saved as global tensors. All ranks must save."""

        def hook(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            for entry, name in names.items():
                state[prefix + entry] = self._joined_slices(name, state[prefix + entry])

        return hook

    def load_state_dict_hook(self, names: Mapping[str, str]) -> Callable[..., None]:
        """For `torch.nn.Module.register_load_state_dict_pre_hook`: global tensors become this rank's slices."""

        def hook(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
            for entry, name in names.items():
                if prefix + entry in state:
                    state[prefix + entry] = self._slice(name, state[prefix + entry])

        return hook

    def empty(self, name: str) -> torch.Tensor:
        """A zeroed tensor of the shape that this rank passes for an input."""
        of = self.program.by_name[name].type
        return torch.zeros(self._shape(of), dtype=TORCH[of.dtype], device=self.device)

    def close(self) -> None:
        """Free the arenas, once all ranks are done."""
        dist.barrier(self.group)
        if self._session is not None:
            self._session.close()

    # How it is done.

    def _require_agreement(self) -> None:
        """Raises InputError on all ranks where one of them has another program, other sizes or other choices."""
        made = self._gathered((self.program.name, text_digest("".join(self.lowered.texts.values()))))
        others = [rank for rank, each in enumerate(made) if each != made[0]]
        if others:
            names = f"{made[others[0]][0]} at rank {others[0]} and {made[0][0]} at rank 0"
            raise InputError(f"found {names}, expected the same program, sizes and choices at all ranks")

    def _joined(self) -> FusionSession:
        target = "cuda" if self.device.type == "cuda" else "process"
        compiled = build(self.lowered, target)  # type: ignore[arg-type]
        device = (self.device.index or 0) if target == "cuda" else 0
        session = FusionSession(compiled.path, self.world, {self.rank: device})
        join(session, self.rank, self._gathered)
        return session

    def _gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    @torch.no_grad()
    def _multiplied(self, call: Call, held: Sequence[torch.Tensor]) -> None:
        def part(number: int, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
            shape = shapes[self.place]
            return held[number].reshape(-1)[: prod(shape)].view(shape)

        left, right = part(call.left, call.lefts), part(call.right, call.rights)
        result = part(call.result, call.results)
        if call.op == "MatMul":
            torch.matmul(left, right, out=result)
        else:
            result.copy_(torch.nn.functional.conv2d(left, right, stride=call.stride, padding=call.padding))

    def _held(self, buffer: Buffer, given: Mapping[str, Given]) -> torch.Tensor:
        """The memory of a buffer: the caller's tensor, a table of them, or a tensor of ours."""
        value = given.get(buffer.name) if buffer.name in self.program.input_names else None
        if value is None:
            fresh = buffer.role == "output" and self.device.type != "cuda"
            if buffer.name not in self._kept or fresh:
                self._kept[buffer.name] = torch.zeros(buffer.elements, dtype=TORCH[buffer.dtype], device=self.device)
            return self._kept[buffer.name]
        if buffer.name in self.scattered:
            if isinstance(value, torch.Tensor | int | float):
                raise InputError(
                    f"{buffer.name}: found a tensor or number, expected the list of tensors it consists of"
                )
            return self._table(buffer, list(value))
        if isinstance(value, int | float):
            kept = self._kept.setdefault(buffer.name, torch.zeros((), dtype=TORCH[buffer.dtype], device=self.device))
            return kept.fill_(value)
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{buffer.name}: found a list, expected a tensor; name it in scattered")
        return self._checked(buffer.name, value)

    def _checked(self, name: str, value: torch.Tensor) -> torch.Tensor:
        of = self.program.by_name[name].type
        shape = self._shape(of)
        if value.dtype != TORCH[of.dtype] or tuple(value.shape) != shape or not value.is_contiguous():
            found = f"{value.dtype} {list(value.shape)}{'' if value.is_contiguous() else ', not contiguous'}"
            raise InputError(f"{name}: found {found}, expected {TORCH[of.dtype]} {list(shape)}, contiguous")
        if value.device.type != self.device.type:
            raise InputError(f"{name}: found a tensor on {value.device}, expected one on {self.device}")
        return value

    def _table(self, buffer: Buffer, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The table of buckets, rebuilt when a tensor has moved."""
        pointers = [tensor.data_ptr() for tensor in tensors]
        if buffer.name in self._tables and self._tables[buffer.name][0] == pointers:
            return self._tables[buffer.name][1][-1]
        index = self._index(self.program.by_name[buffer.name].type.shape[0].names[0])
        sizes = self._sizes(self.program.by_name[buffer.name].type.shape[0].names[0])
        if tuple(tensor.numel() for tensor in tensors) != sizes or any(
            tensor.dtype != TORCH[buffer.dtype] or not tensor.is_contiguous() for tensor in tensors
        ):
            raise InputError(f"{buffer.name}: found other tensors than {list(sizes)} elements of {TORCH[buffer.dtype]}")
        arrays: list[NDArray[Any]] = [index.start, index.page, *addresses(index, pointers)]
        placed = [torch.from_numpy(np.frombuffer(each.tobytes(), np.uint8).copy()).to(self.device) for each in arrays]
        head = header(index, *(each.data_ptr() for each in placed))
        placed.append(torch.from_numpy(head.view(np.int64)).to(self.device))
        self._tables[buffer.name] = (pointers, placed)
        return placed[-1]

    @cached_property
    def _indices(self) -> dict[str, BucketIndex]:
        return {}

    def _index(self, dimension: str) -> BucketIndex:
        if dimension not in self._indices:
            self._indices[dimension] = index_of(bucket_table(self._sizes(dimension)))
        return self._indices[dimension]

    def _sizes(self, dimension: str) -> tuple[int, ...]:
        bindings = self.lowered.bindings
        return tuple(bindings.parts.get(dimension, (bindings.extents[dimension],)))

    def _returned(self, name: str, held: Sequence[torch.Tensor], given: Mapping[str, Given]) -> Any:
        index = self.lowered.places[name]
        buffer, of = self.lowered.buffers[index], self.program.by_name[name].type
        if buffer.name in given:
            return given[buffer.name]
        return held[index][: prod(self._shape(of))].view(self._shape(of))

    def _extents(self, of: TensorType) -> tuple[int, ...]:
        return tuple(extent.value(self.lowered.bindings.values) for extent in of.shape)

    def _shape(self, of: TensorType) -> tuple[int, ...]:
        if not isinstance(of.layout, Sliced):
            return self._extents(of)
        return local_shape(of.layout, self._extents(of), self.lowered.bindings.ranks, self.place)

    def _slice(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        of = self.program.by_name[name].type
        if not isinstance(of.layout, Sliced):
            return tensor
        mine = global_indices(of.layout, self._extents(of), self.lowered.bindings.ranks, self.place)
        return tensor.reshape(-1)[torch.from_numpy(mine).to(tensor.device)].view(self._shape(of)).contiguous()

    def _joined_slices(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        of, ranks = self.program.by_name[name].type, self.lowered.bindings.ranks
        if not isinstance(of.layout, Sliced):
            return tensor
        extents = self._extents(of)
        mine = torch.zeros(capacity(of.layout, extents, ranks), dtype=tensor.dtype, device=tensor.device)
        mine[: tensor.numel()] = tensor.reshape(-1)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine, group=self.group)
        whole = torch.empty(prod(extents), dtype=tensor.dtype, device=tensor.device)
        first = self.rank - self.place
        for rank in range(ranks):
            indices = torch.from_numpy(global_indices(of.layout, extents, ranks, rank)).to(tensor.device)
            whole[indices] = parts[first + rank][: indices.numel()]
        return whole.view(extents)
