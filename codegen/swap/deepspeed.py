"""A swap plan as far as DeepSpeed's ZeRO offload can follow it: `deepspeed.json`, a section of its configuration.

ZeRO keeps parameters and optimizer state on the device or on the host for good, by a few numbers that are usually
guessed. They are solved here so that no more stays on the device than in the plan:

* `sub_group_size` and `offload_optimizer.ratio`: stage 3 cuts the parameters, in the model's order, into sub-groups of
  at least `sub_group_size` elements, and of n sub-groups the first int((1 - ratio) * n) keep their optimizer state on
  the device. Of all cuts into equal parts, up to 64, the one is taken that fills most of the plan's resident state.
* `stage3_param_persistence_threshold` and `stage3_model_persistence_threshold`: parameters no larger than the first
  stay, up to the second in total, in elements. The first is the one that fills most of the plan's resident parameters.
* `stage3_max_live_parameters`, `stage3_max_reuse_distance` and `stage3_prefetch_bucket_size`: the most elements on the
  device at any time of the plan, and the most that are there or in transfer before they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from treadle.codegen.templates import template
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.index import Graph
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.problem import PERSISTENT
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate

FILE_NAME = "deepspeed.json"
README_NAME = "README.md"
MOST_SUB_GROUPS = 64
STATE_PREFIX = "optimizer."
"""How the trace names the buffers of an optimizer: `optimizer.exp_avg.<parameter>`."""


class KeptBytes(NamedTuple):
    """Bytes of parameters or of optimizer state: all of them, what is on the device throughout the plan, and what this
    configuration keeps there."""

    bytes: int
    planned: int
    kept: int


class Offload(NamedTuple):
    """The `zero_optimization` section, and how much of the plan it carries."""

    section: dict[str, Any]
    parameters: KeptBytes
    state: KeptBytes


def generate(decisions: SwapDecisions, trace: Trace) -> tuple[dict[str, str], Offload]:
    """The configuration and its explanation as {relative path: text}. Raises InputError where the plan keeps all
    parameters and optimizer state on the device, or is one of another trace."""
    made = offload(decisions, trace)
    text = json.dumps({"zero_optimization": made.section}, indent=2) + "\n"
    readme = template("deepspeed/readme.md.j2").render(
        name=trace.name,
        memory=format_bytes(decisions.problem.machine.memory_bytes),
        section=made.section,
        parameters=_told(made.parameters),
        state=_told(made.state),
        has_state=made.state.bytes > 0,
        file=FILE_NAME,
    )
    return {FILE_NAME: text, README_NAME: readme}, made


def offload(decisions: SwapDecisions, trace: Trace) -> Offload:
    """The section of the configuration. Raises InputError as `generate`."""
    graph = Graph(trace)
    parameters = [tensor for tensor in trace.tensors if tensor.role == "parameter"]
    states: dict[str, list[Tensor]] = {}
    for tensor in trace.tensors:
        if tensor.role == "buffer" and (tensor.name or "").startswith(STATE_PREFIX):
            states.setdefault((tensor.name or "").removeprefix(STATE_PREFIX).partition(".")[2], []).append(tensor)
    problem = decisions.problem
    for at, record in enumerate(problem.tensors):
        if record.role in PERSISTENT and record.id not in graph.tensors:
            text = f"found tensor {record.id!r}, which the trace {trace.name!r} does not have; it is not the plan's"
            raise InputError(text, where="plan", path=f"$.decisions.problem.tensors[{at}].id")
    moving = {problem.tensors[node.item].id for node in decisions.nodes if node.kind != "compute"}
    there = {problem.tensors[resident.tensor].id for resident in decisions.initial} - moving
    # what the step does not use costs nothing to keep: neither does the plan count it
    used = {record.id for record in problem.tensors}
    parameters = [tensor for tensor in parameters if tensor.id in used]
    section: dict[str, Any] = {"stage": 3}

    resident = sum(_elements(tensor) for tensor in parameters if tensor.id in there)
    state_bytes = [sum(graph.storage_bytes(state.id) for state in states.get(p.name or "", ())) for p in parameters]
    kept_state = sum(graph.storage_bytes(s.id) for group in states.values() for s in group if s.id in there)
    state = KeptBytes(sum(state_bytes), kept_state, 0)
    if state.planned < state.bytes:
        ratio, sub_group, kept = solved_ratio([_elements(p) for p in parameters], state_bytes, kept_state)
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True, "ratio": ratio}
        section["sub_group_size"] = sub_group
        state = state._replace(kept=kept)
    else:
        state = state._replace(kept=state.bytes)

    staying = KeptBytes(_bytes(graph, parameters), _bytes(graph, (p for p in parameters if p.id in there)), 0)
    if staying.planned < staying.bytes:
        threshold = solved_threshold([_elements(p) for p in parameters], resident)
        held = persistent([_elements(p) for p in parameters], threshold, resident)
        live, ahead = _live(decisions, {p.id: _elements(p) for p in parameters})
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
        section["stage3_param_persistence_threshold"] = threshold
        section["stage3_model_persistence_threshold"] = resident
        section["stage3_max_live_parameters"] = live
        section["stage3_max_reuse_distance"] = live
        section["stage3_prefetch_bucket_size"] = ahead
        staying = staying._replace(kept=_bytes(graph, (parameters[at] for at in held)))
    else:
        staying = staying._replace(kept=staying.bytes)
    if len(section) == 1:
        raise InputError(
            "found a plan that leaves all parameters and optimizer state on the device, expected one that moves some "
            "of them: this target carries no activations, torch-offload does",
            where=trace.name,
        )
    if "offload_param" not in section and section["offload_optimizer"]["ratio"] == 1.0:
        section["stage"] = 2
        del section["sub_group_size"]
    return Offload(section, staying, state)


def sub_groups(elements: Sequence[int], size: int) -> list[int]:
    """Index of the sub-group of each parameter, as stage 3 cuts them in one parameter group on one rank."""
    if size >= sum(elements):
        return [0] * len(elements)
    found, group, filled = [], 0, 0
    for count in elements:
        found.append(group)
        filled += count
        if filled >= size:
            group, filled = group + 1, 0
    return found


def solved_ratio(elements: Sequence[int], state_bytes: Sequence[int], resident: int) -> tuple[float, int, int]:
    """(ratio, sub_group_size, bytes kept): the most optimizer state that stays on the device within `resident` bytes,
    and of equal ones the fewest sub-groups."""
    total = sum(elements)
    best = (0, -1, 1.0, max(1, total))  # bytes kept, minus sub-groups, ratio, sub_group_size
    for parts in range(2, MOST_SUB_GROUPS + 1):
        size = max(1, -(-total // parts))
        group = sub_groups(elements, size)
        n = group[-1] + 1 if group else 1
        kept, first = 0, 0
        for at in range(n):
            more = sum(size for size, of in zip(state_bytes, group, strict=True) if of == at)
            if kept + more > resident:
                break
            kept, first = kept + more, at + 1
        ratio = (n - first) / n
        if int((1 - ratio) * n) == first:
            best = max(best, (kept, -n, ratio, size))
    return best[2], best[3], best[0]


def persistent(elements: Sequence[int], threshold: int, most: int) -> list[int]:
    """The parameters that stay on the device for these two thresholds, by their place in the model."""
    held, total = [], 0
    for at, count in enumerate(elements):
        if count <= threshold and total + count <= most:
            held.append(at)
            total += count
    return held


def solved_threshold(elements: Sequence[int], most: int) -> int:
    """The least threshold that keeps the most elements on the device, `most` at the utmost; 0 for none."""
    kept = {size: sum(elements[at] for at in persistent(elements, size, most)) for size in {0, *elements}}
    return min(kept, key=lambda size: (-kept[size], size))


def _live(decisions: SwapDecisions, elements: dict[str, int]) -> tuple[int, int]:
    """The most elements of parameters on the device at a time, and the most of those that were brought there before
    the operator that they were brought for has started. At one time what leaves goes first."""
    problem = decisions.problem
    schedule = simulate(*tasks_of(decisions), start_bytes(decisions))
    begins = {node.serves: schedule.start[at] for at, node in enumerate(decisions.nodes) if node.kind == "compute"}
    count = [elements.get(tensor.id, 0) for tensor in problem.tensors]
    live = [(0, count[resident.tensor]) for resident in decisions.initial]
    ahead: list[tuple[int, int]] = []
    for at, node in enumerate(decisions.nodes):
        if node.kind == "compute":
            continue
        if node.kind == "in":
            live.append((schedule.start[at], count[node.item]))
            ahead.append((schedule.start[at], count[node.item]))
            ahead.append((begins.get(node.serves, schedule.makespan), -count[node.item]))
        else:
            live.append((schedule.end[at], -count[node.item]))
    return _most(live), _most(ahead)


def _most(changes: Iterable[tuple[int, int]]) -> int:
    level = most = 0
    for _, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def _elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape or ():
        count *= size
    return count


def _bytes(graph: Graph, tensors: Iterable[Tensor]) -> int:
    return sum(graph.storage_bytes(tensor.id) for tensor in tensors)


def _told(share: KeptBytes) -> dict[str, str]:
    return {name: format_bytes(value) for name, value in share._asdict().items()}
