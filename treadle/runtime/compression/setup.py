"""What a plan needs of a job: its ranks, its gradients, process groups, and what runs each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor, distributed

from treadle.comm import collectives
from treadle.planner.documents.compression_costs import Place, Routine, Scope
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import ALGORITHMS
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.planner.passes.compression.payload import links
from treadle.runtime.agreement import agreed
from treadle.runtime.compression import routines
from treadle.runtime.compression.coders import Coders, OnHost
from treadle.runtime.compression.exchange import PlannedExchange
from treadle.runtime.compression.group_run import Call, Coder, Grid, GroupRun
from treadle.runtime.compression.lanes import Issue
from treadle.runtime.compression.streams import CudaStreams
from treadle.runtime.scope_groups import ScopeGroups, scope_groups

CoderOf = Callable[[str, Sequence[str], str], Coder]
"""The coder of a compressor for the gradients of these names, with tensors on a device of that type."""


def grid_of(decisions: CompressionDecisions, group: Any) -> Grid:
    """Where this rank is. Raises InputError for a group that does not hold all ranks, and for another number of ranks
    than the plan's."""
    machines, devices, world = decisions.problem.machines, decisions.problem.devices, distributed.get_world_size()
    if group is not None and distributed.get_world_size(group) != world:
        raise InputError(f"found a group of {distributed.get_world_size(group)} ranks, expected one of all {world}")
    if machines * devices != world:
        expected = f"{machines * devices}: the plan is for {machines} nodes of {devices} ranks"
        raise InputError(f"found {world} ranks, expected {expected}")
    return Grid(distributed.get_rank(), machines, devices)


def check_parameters(decisions: CompressionDecisions, parameters: Mapping[str, Tensor]) -> None:
    """Raises InputError that names the first parameter which differs from the plan's gradients."""
    planned = {gradient.name: gradient.elements for gradient in decisions.problem.gradients}
    for name, parameter in parameters.items():
        if name not in planned:
            raise InputError(f"found parameter {name!r} that takes a gradient, expected one of the plan's")
        if parameter.numel() != planned[name]:
            raise InputError(f"found {parameter.numel()} elements of {name!r}, expected {planned[name]} as in the plan")
        if parameter.dtype != torch.float32:
            found = str(parameter.dtype).removeprefix("torch.")
            raise InputError(f"found {found} gradients of {name!r}, expected float32 ones")
    if missing := next((name for name in planned if name not in parameters), None):
        raise InputError(f"found no parameter {missing!r} that takes a gradient, expected that of the plan")


def order_of(decisions: CompressionDecisions) -> tuple[Issue, ...]:
    """The collectives in their order, with the links that they hold. Raises InputError for a step that is unknown, and
    for an order that does not have each collective once, those of a group ascending."""
    words = {*(f"{word}@{place}" for word in ("compress", "decompress") for place in get_args(Place))}
    sent = {f"{word}@{scope}" for word in get_args(Routine) for scope in get_args(Scope)}
    expected = []
    for number, group in enumerate(decisions.groups):
        for place, step in enumerate(group.steps):
            if step not in words and step not in sent:
                raise InputError(f"found step {step!r}", path=f"$.decisions.groups[{number}].steps[{place}]")
            expected += [(number, place)] if step in sent else []
    found = [(each.group, each.step) for each in decisions.order]
    if sorted(found, key=lambda each: each[0]) != expected:
        raise InputError("found another order, expected each collective once", path="$.decisions.order")
    scopes = [decisions.groups[group].steps[step].partition("@")[2] for group, step in found]
    return tuple(Issue(*each, links(decisions.problem, scope)) for each, scope in zip(found, scopes, strict=True))


def in_one_lane(order: Sequence[Issue]) -> tuple[Issue, ...]:
    """For GPUs, where issuing waits for nothing: NCCL needs one order of all its communicators on all ranks."""
    return tuple(issue._replace(lanes=("links",)) for issue in order)


def check_sums(group: GradientGroup) -> None:
    """Raises InputError where payloads that cannot be summed are, and where those of `powersgd` are not."""
    algorithm = ALGORITHMS.get((group.compressor or "").partition(":")[0])
    for step, after in zip(group.steps, group.steps[1:], strict=False):
        if algorithm is None or not step.startswith("compress@"):
            continue
        summed = after.startswith("allreduce@")
        if (summed and not algorithm.summable) or (not summed and algorithm.messages > 1):
            expected = "which cannot be summed" if summed else "expected an allreduce"
            raise InputError(f"found {after} of {group.compressor} payloads, {expected}")


def call_of(groups: ScopeGroups) -> Call:
    """Collectives over process groups. A planned one runs on the group of our own for all ranks: on that of the model
    DistributedDataParallel sends at the same time."""

    def call(word: Routine, scope: Scope, source: Tensor, out: Tensor | None) -> Tensor | None:
        if word == "planned":
            if groups.flat is not None:
                collectives.all_reduce(source, group=groups.flat)
            return source
        return routines.run(word, groups.of(scope), source, out)

    return call


def coders_of(group: GradientGroup, names: Sequence[str], coder_of: CoderOf, device: torch.device) -> dict[str, Coder]:
    """The coders of a group by place, which the device and the host of a CPU share. Raises InputError for payloads that
    cannot be summed, MissingBackendError without a compiler."""
    check_sums(group)
    kinds = {
        place: "cpu" if place == "host" else device.type
        for word, _, place in (step.partition("@") for step in group.steps)
        if word in ("compress", "decompress")
    }
    if len(set(kinds.values())) > 1 and str(group.compressor).startswith("powersgd"):
        raise InputError(f"found {group.compressor} on a GPU and on its host, expected one place")
    made = {kind: coder_of(cast(str, group.compressor), names, kind) for kind in sorted(set(kinds.values()))}
    for coder in made.values():
        coder.wire_bytes(1)  # compiles the kernels
    return {place: made[kind] if kind == device.type else OnHost(made[kind]) for place, kind in kinds.items()}


def run_of(
    group: GradientGroup,
    names: Sequence[str],
    elements: int,
    grid: Grid,
    call: Call,
    coder_of: CoderOf,
    device: torch.device,
) -> GroupRun:
    """What executes the steps of a group. Raises what `coders_of` raises."""
    return GroupRun(group.steps, elements, grid, call, coders_of(group, names, coder_of, device), device)


def exchange_of(
    decisions: CompressionDecisions, grid: Grid, order: Sequence[Issue], coders: Coders, device: torch.device
) -> PlannedExchange:
    """The exchange of the gradients of a plan, with process groups of its own. All ranks call it together. Raises what
    `coders_of` raises, on all of them alike."""
    call = call_of(scope_groups(decisions.problem.devices))
    gradients = decisions.problem.gradients

    def made() -> list[GroupRun]:
        runs = []
        for each in decisions.groups:
            inside = gradients[each.first : each.last + 1]
            names, elements = [gradient.name for gradient in inside], sum(gradient.elements for gradient in inside)
            runs.append(run_of(each, names, elements, grid, call, coders.coder, device))
        return runs

    return PlannedExchange(
        [gradient.elements for gradient in gradients],
        [(each.first, each.last) for each in decisions.groups],
        agreed(made),
        order if device.type == "cpu" else in_one_lane(order),
        decisions.problem.host_workers,
        CudaStreams(device) if device.type == "cuda" else None,
    )
