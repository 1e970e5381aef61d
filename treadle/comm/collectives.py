"""The calls of `treadle.comm`: the planned algorithm if any, else the framework's own with one logged line.

Calls run on the algorithms that `init` loaded, or on those of a process group of the backend `treadle`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, distributed

from treadle.comm import calls, framework, splits
from treadle.comm.arguments import (
    check_output,
    check_parts,
    check_places,
    check_root,
    check_splits,
    list_problem,
    refuse_alike,
)
from treadle.comm.backend import TreadleGroup
from treadle.comm.calls import COLLECTIVES, CollectiveCall
from treadle.comm.library import Choice, Library, LoadedAlgorithm, load, programs
from treadle.comm.planned import PlannedGroup, described
from treadle.comm.tally import Summary, Tally
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError
from treadle.runtime import agreement
from treadle.runtime.torch_names import new_group


class _Loaded(NamedTuple):
    """What `init` made."""

    outer: Any
    """The group given to `init`, else the world: what calls without a group run on."""
    planned: PlannedGroup


_loaded: _Loaded | None = None
_unplanned = Tally()
"""Calls on groups without algorithms."""


def init(folder: Path | str, group: Any = None, *, timeout: float | None = None) -> None:
    """Load the algorithms in `folder` on every rank of `group` (default: all); a second call replaces the first.

    Calls without a group then run on this one. On GPUs a kernel that waits more than `timeout` seconds for another rank
    ends the call on all ranks, as the end of a process always does; without one a rank may be late. Needs
    torch.distributed.init_process_group before it. Raises InputError when it was not called or this process is not in
    `group`; and on all ranks alike, so that none waits for another, when on one of them `folder` holds no algorithm,
    one for another number of ranks, or not the same as on the others. What an earlier call loaded stays when this one
    fails.
    """
    global _loaded
    if timeout is not None and not 0 < timeout < float("inf"):
        raise InputError(f"found timeout {timeout}, expected seconds above 0, or None", where="treadle.comm.init")
    if not distributed.is_initialized():
        raise InputError("treadle.comm.init: call torch.distributed.init_process_group first")
    if group is not None and distributed.get_rank(group) < 0:
        raise InputError("treadle.comm.init: found a group without this process, expected a call on its ranks alone")
    outer = distributed.group.WORLD if group is None else group
    ranks = distributed.get_process_group_ranks(outer)

    def connect(backend: str, together: bool = False) -> Any:
        limit = None if timeout is None or backend == "gloo" else timedelta(seconds=timeout)
        return new_group(ranks, timeout=limit, backend=backend, use_local_synchronization=not together)

    own = connect("gloo", group is None)
    try:
        planned, alone = _libraries(folder, own)
    except InputError:
        distributed.destroy_process_group(own)
        raise
    shutdown()
    rank, end = distributed.get_rank(own), distributed.destroy_process_group
    _loaded = _Loaded(outer, PlannedGroup(rank, planned, alone, connect, end, own, timeout or 0))


def _libraries(folder: Path | str, group: Any) -> tuple[Library, Library]:
    """The algorithms in `folder`, for GPUs and for the CPU; InputError on all ranks when one loads others or none."""

    def both() -> tuple[Library, Library]:
        planned = load(folder, distributed.get_world_size(group))
        return planned, planned.alone()

    found = agreement.agreed(both, group)
    all_of_them: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(all_of_them, programs(found[0]), group=group)
    for rank, theirs in enumerate(all_of_them):
        if theirs != all_of_them[0]:
            raise InputError(f"rank {rank} found other algorithms than rank 0, expected the same", where=str(folder))
    return found


def shutdown() -> None:
    """Forget the algorithms and end their process group; calls then run the framework's collectives.

    All ranks must call it where kernels ran on GPUs, before they end or destroy their process groups: a GPU's memory is
    given back only when no other GPU needs it any more.
    """
    global _loaded
    try:
        if _loaded is not None:
            _loaded.planned.close()
    finally:
        _loaded = None


def explain(tensor: Tensor, call: str = "all_reduce", op: Any = "sum", root: int = 0, group: Any = None) -> Choice:
    """What `call` (a name of this package such as all_gather_into_tensor) would do with `tensor` as its input."""
    if call not in COLLECTIVES:
        raise InputError(f"found {call!r}, {meant(call, COLLECTIVES)}", where="treadle.comm.explain")
    group = group_of(group)
    planned = planned_of(group, tensor)
    wanted = described(call, tensor, op, root, distributed.get_world_size(group) if planned else 1)
    if planned is None:
        return Choice(wanted.collective, wanted.input_bytes, None, _why_unplanned(group))
    return planned.choose(wanted)[1]


def summary(group: Any = None) -> Summary:
    """How many calls on `group` ran as planned so far and how many fell back, on this rank."""
    planned = planned_of(group_of(group))
    return (_unplanned if planned is None else planned.tally).summary()


def all_reduce(tensor: Tensor, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks, in place. `op` is sum, min, max, avg or a ReduceOp."""
    group = group_of(group)
    if not _served(calls.all_reduce(tensor, op), group):
        framework.all_reduce(tensor, op, group)


def broadcast(tensor: Tensor, src: int = 0, group: Any = None) -> None:
    """Give every rank the `tensor` of rank `src` (of the group), in place."""
    group = group_of(group)
    check_root(src, distributed.get_world_size(group))
    if not _served(calls.broadcast(tensor, src), group):
        framework.broadcast(tensor, src, group)


def reduce(tensor: Tensor, dst: int = 0, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks into that of rank `dst` (of the group); the others keep theirs."""
    group = group_of(group)
    check_root(dst, distributed.get_world_size(group))
    if not _served(calls.reduce(tensor, dst, op, distributed.get_rank(group)), group):
        framework.reduce(tensor, dst, op, group)


def all_gather_into_tensor(output: Tensor, tensor: Tensor, group: Any = None) -> None:
    """Give every rank the tensors of all ranks, one after the other along the first dimension."""
    group = group_of(group)
    check_output(output, tensor, tensor.numel() * distributed.get_world_size(group))
    if not _served(calls.all_gather(output, tensor), group):
        framework.all_gather(output, tensor, group)


def reduce_scatter_tensor(output: Tensor, tensor: Tensor, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks and give each rank its part of the first dimension."""
    group = group_of(group)
    world = distributed.get_world_size(group)
    check_parts(tensor, world)
    check_output(output, tensor, tensor.numel() // world)
    if not _served(calls.reduce_scatter(output, tensor, op), group):
        framework.reduce_scatter(output, tensor, op, group)


def all_to_all_single(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
) -> None:
    """Send every rank its part of `tensor`. Split sizes, which all ranks give or none, are served by a plan for
    alltoall where they are equal, and by one for alltoallv whose counts divide them."""
    group = group_of(group)
    world = distributed.get_world_size(group)
    check_splits(output_split_sizes, output, world, "output_split_sizes")
    check_splits(input_split_sizes, tensor, world, "input_split_sizes")
    regular = output_split_sizes is None and input_split_sizes is None
    check_output(output, tensor, tensor.numel() if regular else output.numel())
    call, served = calls.all_to_all(output, tensor), False
    if regular:
        served = _served(call, group)
    elif (planned := planned_of(group, tensor)) is None:
        _unplanned.fell_back(splits.NAME, _why_unplanned(group))
    else:
        sizes = [splits.elements(output_split_sizes, output, world), splits.elements(input_split_sizes, tensor, world)]
        if (found := splits.agreed(planned, call, *sizes)) is not None:
            served = bool(planned.run(*found))
    if not served:
        framework.all_to_all(output, tensor, output_split_sizes, input_split_sizes, group)


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, group: Any = None) -> None:
    """Fill `gather_list` on rank `dst` (of the group) with the tensors of all ranks."""
    group = group_of(group)
    _check_list(gather_list, tensor, dst, group, "gather_list")
    if not _served(calls.gather(tensor, gather_list, dst), group):
        framework.gather(tensor, gather_list, dst, group)


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, group: Any = None) -> None:
    """Fill `tensor` with this rank's entry of `scatter_list` on rank `src` (of the group)."""
    group = group_of(group)
    _check_list(scatter_list, tensor, src, group, "scatter_list")
    if not _served(calls.scatter(tensor, scatter_list, src, distributed.get_world_size(group)), group):
        framework.scatter(tensor, scatter_list, src, group)


def exchange(tensor: Tensor, part: int | None = None) -> Tensor:
    """Run the planned sendrecv or custom pattern: this rank's parts in, its parts out, each `part` elements long
    (default: what `tensor` has for each part that the rank holds).

    Raises InputError when no such pattern is loaded or the tensor is not on the CPU: the framework has no collective to
    fall back to.
    """
    planned = None if _loaded is None else _loaded.planned
    found = [] if planned is None else [*planned.alone.of("sendrecv"), *planned.alone.of("custom")]
    if planned is None or not found:
        raise InputError("found no plan for sendrecv or custom, expected one in the folder of treadle.comm.init")
    if tensor.device.type != "cpu":
        raise InputError(f"found a tensor on {tensor.device}, expected one on the CPU, as exchange runs only there")
    run = planned.executor(found[0])
    result: Tensor = planned.lane.run(lambda: run(tensor.reshape(-1), part=part))
    return result


def group_of(group: Any) -> Any:
    """What a call runs on, planned or not: its own group, else that of `init`, else the world."""
    if _loaded is not None and not _loaded.planned.stands():
        shutdown()
    if group is None:
        return distributed.group.WORLD if _loaded is None else _loaded.outer
    if distributed.get_rank(group) < 0:
        raise InputError("found a group without this process, expected calls on its ranks alone")
    return group


def planned_of(group: Any, tensor: Tensor | None = None) -> PlannedGroup | None:
    """The algorithms for calls on `group`, with `tensor` if any: those that `init` loaded for it, else those of its
    backend, else those that `init` loaded for the same ranks in the same order."""
    if _loaded is not None and group is _loaded.outer:
        return _loaded.planned
    if isinstance(group, TreadleGroup) and group.planned is not None:
        return group.planned if tensor is None else group.planned_on(tensor.device)
    ranks = distributed.get_process_group_ranks
    alike = _loaded is not None and ranks(group) == ranks(_loaded.planned.group)
    return _loaded.planned if alike and _loaded is not None else None


def agreed(call: CollectiveCall, group: Any) -> tuple[PlannedGroup, LoadedAlgorithm] | None:
    """What all ranks of `group` run for a call, None (and a logged line) where the framework must."""
    check_places(distributed.get_rank(group), call.tensor, call.outputs)
    planned = planned_of(group, call.tensor)
    if planned is None:
        _unplanned.fell_back(call.name, _why_unplanned(group))
        return None
    algorithm = planned.agreed(call)
    return None if algorithm is None else (planned, algorithm)


def _served(call: CollectiveCall, group: Any) -> bool:
    """Whether a call was done as planned."""
    found = agreed(call, group)
    if found is None:
        return False
    planned, algorithm = found
    planned.run(call, algorithm)
    return True


def _why_unplanned(group: Any) -> str:
    if isinstance(group, TreadleGroup):
        return "its process group has no plans for such tensors"
    if _loaded is None:
        return "treadle.comm.init was not called"
    return "the algorithms were loaded for another process group"


def _check_list(rows: list[Tensor] | None, tensor: Tensor, root: int, group: Any, name: str) -> None:
    """Refuse a wrong list. Only its rank sees that it is wrong, so on the CPU the ranks exchange that."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    check_root(root, ranks)
    problem = list_problem(rows, tensor, ranks, root=rank == root, name=name)
    planned = planned_of(group, tensor)
    if tensor.device.type != "cpu":
        if problem is not None:
            raise InputError(problem)
    elif planned is not None:
        planned.lane.run(lambda: refuse_alike(problem, planned.joined()))
    else:
        refuse_alike(problem, group)
