"""The collectives of `treadle.comm`: the planned algorithm if any, otherwise the framework's, with one logged line.

On the CPU all calls run one after the other, in the order of the calls, on a process group of their own; on GPUs
(gpu.py) on a stream of their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp

from treadle.codegen.emit import text_digest
from treadle.comm import framework, gpu
from treadle.comm.arguments import (
    check_output,
    check_parts,
    check_places,
    check_root,
    check_splits,
    list_problem,
    part_of,
    refuse_alike,
)
from treadle.comm.framework import WORDS
from treadle.comm.gpu import GpuExecutor
from treadle.comm.library import Choice, Library, LoadedAlgorithm, load
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError, MissingBackendError
from treadle.runtime.collective import native
from treadle.runtime.collective.messages import Executor, cut_of, executor
from treadle.runtime.collective.wire.groups import close_wire, stands, stop_wire, wire_of

log = logging.getLogger("treadle.comm")

DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64})

CALLS = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_tensor": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all_single": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
}
"""Calls by the collective that they are."""

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass
class _State:
    """What `init` made: algorithms, a process group of our own, and the order of calls on the CPU."""

    planned: Library
    """As planned, for GPUs."""
    alone: Library
    """With one instance, for the CPU."""
    outer: Any
    """The group given to `init`, else the world: what calls without a group run on."""
    group: Any
    """Our own, of the ranks of `outer` in the same order."""
    rank: int
    gpu: GpuExecutor
    executors: dict[str, Executor] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "treadle-comm"))
    pending: int = 0
    obstacle: str | None = None
    """Why programs cannot run on the CPUs of the group, once that is known."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, work: Callable[[], Any]) -> Any:
        """`work` here and now, or after what `later` still has to do."""
        with self.lock:
            idle = not self.pending
        if idle:
            return work()
        try:
            return self.later(work).result()
        except (KeyboardInterrupt, SystemExit):
            stop_wire(self.group)  # the exit of Python would wait for the call on the other thread
            raise

    def later(self, work: Callable[[], Any]) -> Future[Any]:
        """`work` on the one background thread, after everything before it."""
        with self.lock:
            self.pending += 1
        future = self.worker.submit(work)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        with self.lock:
            self.pending -= 1

    def unready(self) -> str | None:
        """Why programs cannot run on the CPUs of this group, the same on all of its ranks."""
        if self.obstacle is None:
            try:
                wire_of(self.group)
            except MissingBackendError as error:
                self.obstacle = str(error)
        return self.obstacle

    def executor(self, algorithm: LoadedAlgorithm) -> Executor:
        found = self.executors.get(algorithm.name)
        if found is None:
            cut = cut_of(algorithm.decisions)
            found = self.executors[algorithm.name] = executor(algorithm.program, self.rank, self.group, cut=cut)
        return found


_state: _State | None = None


def init(folder: Path | str, group: Any = None, *, timeout: float | None = None) -> None:
    """Load the algorithms in `folder` on every rank of `group` (default: all); a second call replaces the first.

    Calls without a group then run on this one. On GPUs a kernel that waits more than `timeout` seconds for another rank
    ends the call on all ranks, as the end of a process always does; without one a rank may be late. Needs
    torch.distributed.init_process_group before it. Raises InputError when it was not called or this process is not in
    `group`; and on all ranks alike, so that none waits for another, when on one of them `folder` holds no algorithm,
    one for another number of ranks, or not the same as on the others. What an earlier call loaded stays when this one
    fails.
    """
    global _state
    if timeout is not None and not 0 < timeout < float("inf"):
        raise InputError(f"found timeout {timeout}, expected seconds above 0, or None", where="treadle.comm.init")
    if not distributed.is_initialized():
        raise InputError("treadle.comm.init: call torch.distributed.init_process_group first")
    if group is not None and distributed.get_rank(group) < 0:
        raise InputError("treadle.comm.init: found a group without this process, expected a call on its ranks alone")
    outer = distributed.group.WORLD if group is None else group
    ranks = distributed.get_process_group_ranks(outer)
    own = distributed.new_group(ranks, backend="gloo", use_local_synchronization=group is not None, sort_ranks=False)
    try:
        planned, alone = _loaded(folder, own)
    except InputError:
        distributed.destroy_process_group(own)
        raise
    shutdown()
    rank = distributed.get_rank(own)
    _state = _State(planned, alone, outer, own, rank, GpuExecutor(rank, own, timeout or 0))


def _loaded(folder: Path | str, group: Any) -> tuple[Library, Library]:
    """The algorithms in `folder`, for GPUs and for the CPU; InputError on all ranks when one loads others or none."""

    def both() -> tuple[Library, Library]:
        planned = load(folder, distributed.get_world_size(group))
        return planned, planned.alone()

    found = native.agreed(both, group)
    # Ranks with different programs would wait for each other's messages forever.
    mine = [(one.name, text_digest(repr(one.program))) for one in found[0].algorithms]
    all_of_them: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(all_of_them, mine, group=group)
    for rank, theirs in enumerate(all_of_them):
        if theirs != all_of_them[0]:
            raise InputError(f"rank {rank} found other algorithms than rank 0, expected the same", where=str(folder))
    return found


def shutdown() -> None:
    """Forget the algorithms and end their process group; calls then run the framework's collectives.

    All ranks must call it where kernels ran on GPUs, before they end or destroy their process groups: a GPU's memory is
    given back only when no other GPU needs it any more.
    """
    global _state
    if _state is not None:
        try:
            _state.worker.shutdown(wait=True)
        except (KeyboardInterrupt, SystemExit):
            stop_wire(_state.group)
            raise
        state, _state = _state, None
        if stands(state.group):
            try:
                state.gpu.close()
            finally:
                close_wire(state.group)
                distributed.destroy_process_group(state.group)


def explain(tensor: Tensor, call: str = "all_reduce", op: Any = "sum", root: int = 0, group: Any = None) -> Choice:
    """What `call` (a name of this package such as all_gather_into_tensor) would do with `tensor` as its input."""
    if call not in CALLS:
        raise InputError(f"found {call!r}, {meant(call, CALLS)}", where="treadle.comm.explain")
    return _choose(call, tensor, op=op, root=root, group=group_of(group))[1]


def all_reduce(tensor: Tensor, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks, in place. `op` is sum, min, max, avg or a ReduceOp."""
    group = group_of(group)
    if (planned := _planned("all_reduce", tensor, op=op, group=group)) is None:
        return framework.all_reduce(tensor, op, group)
    return _into(tensor, planned(tensor, op=_word(op)))


def broadcast(tensor: Tensor, src: int = 0, group: Any = None) -> None:
    """Give every rank the `tensor` of rank `src` (of the group), in place."""
    group = group_of(group)
    check_root(src, distributed.get_world_size(group))
    if (planned := _planned("broadcast", tensor, root=src, group=group)) is None:
        return framework.broadcast(tensor, src, group)
    return _into(tensor, planned(tensor))


def reduce(tensor: Tensor, dst: int = 0, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks into that of rank `dst` (of the group); the others keep theirs."""
    group = group_of(group)
    check_root(dst, distributed.get_world_size(group))
    planned = _planned("reduce", tensor, op=op, root=dst, group=group)
    if planned is None:
        framework.reduce(tensor, dst, op, group)
        return
    rooted = distributed.get_rank(group) == dst
    # A program in place works in the tensors of all ranks.
    result = planned(tensor if rooted else tensor.clone(), op=_word(op))
    if rooted:
        _into(tensor, result)


def all_gather_into_tensor(output: Tensor, tensor: Tensor, group: Any = None) -> None:
    """Give every rank the tensors of all ranks, one after the other along the first dimension."""
    group = group_of(group)
    check_output(output, tensor, tensor.numel() * distributed.get_world_size(group))
    if (planned := _planned("all_gather_into_tensor", tensor, output, group=group)) is None:
        return framework.all_gather(output, tensor, group)
    return _into(output, planned(tensor.reshape(-1), out=output))


def reduce_scatter_tensor(output: Tensor, tensor: Tensor, op: Any = "sum", group: Any = None) -> None:
    """Reduce `tensor` over all ranks and give each rank its part of the first dimension."""
    group = group_of(group)
    world = distributed.get_world_size(group)
    check_parts(tensor, world)
    check_output(output, tensor, tensor.numel() // world)
    if (planned := _planned("reduce_scatter_tensor", tensor, output, op=op, group=group)) is None:
        return framework.reduce_scatter(output, tensor, op, group)
    return _into(output, planned(tensor.reshape(-1), op=_word(op), out=output))


def all_to_all_single(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
) -> None:
    """Send every rank its part of `tensor`. Split sizes are served by a plan for alltoallv whose counts divide them."""
    group = group_of(group)
    world = distributed.get_world_size(group)
    check_splits(output_split_sizes, output, world, "output_split_sizes")
    check_splits(input_split_sizes, tensor, world, "input_split_sizes")
    regular = output_split_sizes is None and input_split_sizes is None
    check_output(output, tensor, tensor.numel() if regular else output.numel())
    if not regular:
        served = _all_to_all_v(output, tensor, output_split_sizes, input_split_sizes, group)
    elif served := (planned := _planned("all_to_all_single", tensor, output, group=group)) is not None:
        _into(output, planned(tensor.reshape(-1), out=output))
    if not served:
        framework.all_to_all(output, tensor, output_split_sizes, input_split_sizes, group)


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, group: Any = None) -> None:
    """Fill `gather_list` on rank `dst` (of the group) with the tensors of all ranks."""
    group = group_of(group)
    _check_list(gather_list, tensor, dst, group, "gather_list")
    planned = _planned("gather", tensor, root=dst, group=group)
    if planned is None:
        framework.gather(tensor, gather_list, dst, group)
        return
    result = planned(tensor.reshape(-1))
    if gather_list:
        for one, row in zip(gather_list, result.chunk(len(gather_list)), strict=True):
            _into(one, row)


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, group: Any = None) -> None:
    """Fill `tensor` with this rank's entry of `scatter_list` on rank `src` (of the group)."""
    group = group_of(group)
    _check_list(scatter_list, tensor, src, group, "scatter_list")
    world = distributed.get_world_size(group)
    planned = _planned("scatter", tensor, root=src, group=group, copies=world)
    if planned is None:
        framework.scatter(tensor, scatter_list, src, group)
        return
    given = tensor.new_empty(world * tensor.numel())
    if scatter_list:
        torch.cat([one.detach().reshape(-1) for one in scatter_list], out=given)
    _into(tensor, planned(given))


def group_of(group: Any) -> Any:
    """What a call runs on, planned or not: its own group, else that of `init`, else the world."""
    if _state is not None and not stands(_state.group):
        shutdown()
    if group is None:
        return distributed.group.WORLD if _state is None else _state.outer
    if distributed.get_rank(group) < 0:
        raise InputError("found a group without this process, expected calls on its ranks alone")
    return group


def _check_list(rows: list[Tensor] | None, tensor: Tensor, root: int, group: Any, name: str) -> None:
    """Refuse a wrong list. Only its rank sees that it is wrong, so on the CPU the ranks exchange that."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    check_root(root, ranks)
    problem = list_problem(rows, tensor, ranks, root=rank == root, name=name)
    state = _state
    if tensor.device.type != "cpu":
        if problem is not None:
            raise InputError(problem)
    elif state is not None and _is_ours(group):
        state.run(lambda: refuse_alike(problem, state.group))
    else:
        refuse_alike(problem, group)


def queued_all_reduce(tensor: Tensor, group: Any) -> torch.futures.Future[Tensor] | None:
    """Sum `tensor` over all ranks in the background; None (and a logged line) where no plan serves it."""
    algorithm = _agreed("all_reduce", tensor, group=group_of(group))
    state = _state
    if algorithm is None or state is None:
        return None
    if gpu.on_gpu(tensor):
        return state.gpu.queued_sum(algorithm, tensor)
    run, future = state.executor(algorithm), torch.futures.Future[Tensor]()

    def work() -> None:
        try:
            _into(tensor, run(tensor))
            future.set_result(tensor)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # annotated as a result

    state.later(work)
    return future


def start_in_order(tensor: Tensor, start: Callable[[], Any]) -> Any:
    """The result of `start`, which starts a collective of the framework on `tensor` in the background."""
    lane = None if _state is None or not gpu.on_gpu(tensor) else _state.gpu.lane
    return start() if lane is None else lane.framework(start)


def exchange(tensor: Tensor, part: int | None = None) -> Tensor:
    """Run the planned sendrecv or custom pattern: this rank's parts in, its parts out, each `part` elements long
    (default: what `tensor` has for each part that the rank holds).

    Raises InputError when no such pattern is loaded or the tensor is not on the CPU: the framework has no collective to
    fall back to.
    """
    state = _state
    found = [] if state is None else [*state.alone.of("sendrecv"), *state.alone.of("custom")]
    if state is None or not found:
        raise InputError("found no plan for sendrecv or custom, expected one in the folder of treadle.comm.init")
    if tensor.device.type != "cpu":
        raise InputError(f"found a tensor on {tensor.device}, expected one on the CPU, as exchange runs only there")
    run = state.executor(found[0])
    result: Tensor = state.run(lambda: run(tensor.reshape(-1), part=part))
    return result


def _choose(
    call: str,
    tensor: Tensor,
    output: Tensor | None = None,
    *,
    op: Any = "sum",
    root: int | None = None,
    group: Any = None,
    copies: int = 1,
) -> tuple[LoadedAlgorithm | None, Choice]:
    """The algorithm for a call, or None; and why. `copies` of the tensor are the input."""
    collective, size = CALLS[call], tensor.numel() * tensor.element_size() * copies
    reason = _unfit(collective, tensor, output, op, group)
    if reason is not None or _state is None:
        return None, Choice(collective, size, None, reason or "treadle.comm.init was not called")
    library = _state.planned if gpu.on_gpu(tensor) else _state.alone
    inplace, root = collective in ("allreduce", "broadcast"), root if collective in ROOTED else None
    algorithm, choice = library.choose(collective, size, inplace=inplace, root=root)
    if algorithm is not None and gpu.on_gpu(tensor):
        obstacle, how = _state.gpu.known(algorithm.name)
        if obstacle is not None:
            return None, Choice(collective, size, None, obstacle)
        choice = replace(choice, reason=f"{choice.reason}, {how}")
    return algorithm, choice


def _unfit(collective: str, tensor: Tensor, output: Tensor | None, op: Any, group: Any) -> str | None:
    """Why no algorithm may run on this call, whatever its size."""
    if _state is None:
        return "treadle.comm.init was not called"
    if not _is_ours(group):
        return "the algorithms were loaded for another process group"
    if _word(op) is None:
        return f"op {str(op).removeprefix('RedOpType.')} is not one of {', '.join(WORDS)}"
    for one in (tensor, output):
        if one is None:
            continue
        if one.device.type != "cpu" and not gpu.on_gpu(one):
            return f"tensors on {one.device.type} are not executed by this runtime"
        if one.layout != torch.strided:
            return f"{str(one.layout).removeprefix('torch.')} tensors are not executed as planned"
        if one.dtype not in DTYPES:
            return f"{str(one.dtype).removeprefix('torch.')} is not a dtype that is executed"
    return gpu.unfit(collective, tensor.dtype) if gpu.on_gpu(tensor) else None


def _is_ours(group: Any) -> bool:
    """Whether `group` has the ranks that the algorithms were loaded for, in their order."""
    if _state is None or group is _state.outer:
        return _state is not None
    ranks = distributed.get_process_group_ranks(group)
    return bool(ranks == distributed.get_process_group_ranks(_state.group))


def _agreed(call: str, tensor: Tensor, output: Tensor | None = None, **more: Any) -> LoadedAlgorithm | None:
    """The algorithm that all ranks run for a call, None (and a logged line) where the framework must."""
    check_places(distributed.get_rank(more["group"]), tensor, output)
    algorithm, choice = _choose(call, tensor, output, **more)
    state = _state
    if algorithm is None or state is None:
        fell_back(call, choice.reason)
        return None
    if gpu.on_gpu(tensor) and (obstacle := state.run(lambda: state.gpu.prepare(algorithm, tensor))) is not None:
        fell_back(call, obstacle)
        return None
    if not gpu.on_gpu(tensor) and (obstacle := state.run(state.unready)) is not None:
        fell_back(call, obstacle)
        return None
    return algorithm


def _planned(call: str, tensor: Tensor, output: Tensor | None = None, **more: Any) -> Callable[..., Tensor] | None:
    """The function that runs a call as planned, None (and a logged line) where the framework must."""
    algorithm = _agreed(call, tensor, output, **more)
    state = _state
    if algorithm is None or state is None:
        return None
    if gpu.on_gpu(tensor):
        return lambda given, op="sum", out=None: state.gpu.run(algorithm, given, op)
    run = state.executor(algorithm)
    return lambda *args, **options: state.run(lambda: run(*args, **options))


def fell_back(call: str, reason: str) -> None:
    """Log once for each call and reason that the framework's collective runs."""
    logged = _logged if _state is None else _state.logged
    if (line := f"{call}: torch.distributed's own collective runs, {reason}") not in logged:
        logged.add(line)
        log.warning(line)


_logged: set[str] = set()


def _word(op: Any) -> str | None:
    """sum, min, max or avg; None for other reductions."""
    if isinstance(op, str):
        return op if op in WORDS else None
    return next((word for word, known in WORDS.items() if known == op), None)


def _into(target: Tensor, result: Tensor) -> None:
    if target.data_ptr() != result.data_ptr():
        target.detach().copy_(result.reshape(target.shape))


def _all_to_all_v(
    output: Tensor, tensor: Tensor, out_sizes: list[int] | None, in_sizes: list[int] | None, group: Any
) -> bool:
    """Whether a plan for alltoallv served the call. All ranks must agree, so they exchange what would fit."""
    check_places(distributed.get_rank(group), tensor, output)
    state, call = _state, "all_to_all_single with split sizes"
    reason = _unfit("alltoallv", tensor, output, "sum", group)
    found = [] if state is None else state.alone.of("alltoallv")
    if state is None or reason is not None or not found:
        fell_back(call, reason or "there is no plan for alltoallv")
        return False
    algorithm = found[0]
    part = part_of(algorithm, state.rank, tensor, output, out_sizes, in_sizes)
    least = torch.tensor([part, -part])
    state.run(lambda: distributed.all_reduce(least, ReduceOp.MIN, group=state.group))
    # -1: no multiple of the counts; 0: nothing to say on this rank, which holds no part.
    low, high = int(least[0]), -int(least[1])
    agreed = low >= 0 and high > 0
    if agreed:
        fits = torch.tensor([int(part in (0, high))])
        state.run(lambda: distributed.all_reduce(fits, ReduceOp.MIN, group=state.group))
        agreed = bool(fits)
    if not agreed:
        fell_back(call, "the sizes are no multiple of the plan's counts")
        return False
    run = state.executor(algorithm)
    _into(output, state.run(lambda: run(tensor.reshape(-1), out=output, part=high)))
    return True
