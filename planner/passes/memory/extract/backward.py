"""The backward nodes of a memory problem: which backward ops share one, and the gradient bytes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.trace import Call, Implementation, Op
from treadle.planner.passes.memory.extract.step import TrainingStep, calls_of, name_of
from treadle.planner.passes.memory.problem import Backward, BackwardNode


@dataclass(frozen=True)
class _Ops:
    """The backward ops in order: the forward nodes that each of their calls reads, and the gradient bytes in use while
    each runs, workspace not counted."""

    step: TrainingStep
    calls: list[list[Call]]
    needs: list[list[frozenset[int]]]
    births: dict[str, int]
    in_use: list[int]

    def op(self, place: int) -> Op:
        return self.step.backward[place]

    def used(self, place: int) -> int:
        """Gradient bytes and workspace of the op's own call."""
        return self.in_use[place] + (self.op(place).workspace_bytes or 0)

    def live(self, place: int) -> int:
        """Gradient bytes that are live before the op runs and while it does."""
        born = (t for t in self.step.made(self.op(place)) if self.births[t] == place)
        return self.in_use[place] - sum(map(self.step.size, born))

    def reused(self, call: Call) -> int:
        """Bytes of the gradient that the call overwrites."""
        if isinstance(call, Implementation) and call.overwrites is not None:
            return self.step.size(self.step.owner[call.overwrites])
        return 0


def backward_nodes(step: TrainingStep, node_of: dict[str, int], *, hold_gradients: bool) -> tuple[BackwardNode, ...]:
    """The nodes in execution order; `node_of` are the forward nodes that make each storage that backward ops read."""
    optional = {t for op in step.forward if op.intermediate_of is not None for t in step.made(op)}
    calls = [
        [call for call in calls_of(op) if step.read([call]).isdisjoint(optional - node_of.keys())]
        for op in step.backward
    ]
    births, deaths = _lives(step, hold_gradients)
    ops = _Ops(
        step=step,
        calls=calls,
        needs=[[frozenset(node_of[t] for t in step.read([call]) if t in node_of) for call in some] for some in calls],
        births=births,
        in_use=_bytes_in_use(step, births, deaths, len(step.backward)),
    )
    slack = sum(map(step.size, node_of)) // 1024
    groups: list[list[int]] = []
    for place in range(len(step.backward)):
        if groups and _joins(ops, groups[-1], place, slack):
            groups[-1].append(place)
        else:
            groups.append([place])
    return tuple(_node(ops, group) for group in groups)


def _joins(ops: _Ops, group: Sequence[int], place: int, slack: int) -> bool:
    """Whether treating the op as one with those of the group loses next to nothing. An op of several implementations
    starts a group; another op joins it if it reads no more than any of them and never is the group's peak."""
    if len(ops.calls[place]) > 1:
        return False
    wanted, first = ops.needs[place][0], group[0]
    if len(ops.calls[first]) > 1:
        floor = ops.in_use[first] - max(map(ops.reused, ops.calls[first]))
        return wanted <= frozenset.intersection(*ops.needs[first]) and ops.used(place) <= floor + slack
    together = frozenset().union(*(ops.needs[p][0] for p in group))
    return wanted == together or (wanted < together and ops.used(place) <= slack + max(map(ops.used, group)))


def _node(ops: _Ops, group: Sequence[int]) -> BackwardNode:
    first, *rest = group
    live = ops.live(first)
    made = max(ops.in_use[place] for place in group) - live
    shared = frozenset[int]().union(*(ops.needs[place][0] for place in rest))
    impls = []
    for call, needs in zip(ops.calls[first], ops.needs[first], strict=True):
        reused = ops.reused(call)
        if reused not in (0, made):
            continue
        peak = max([ops.in_use[first] - reused + (call.workspace_bytes or 0), *map(ops.used, rest)])
        impls.append(
            Backward(
                name=name_of(call),
                family=call.family,
                needs=tuple(sorted(needs | shared)),
                workspace_bytes=max(0, peak - live - (0 if reused else made)),
                time_ns=(call.time_ns or 0) + sum(ops.op(place).time_ns or 0 for place in rest),
                grad_inplace=reused > 0,
            )
        )
    return BackwardNode(
        op=ops.op(first).target,
        live_grad_bytes=live,
        out_grad_bytes=made,
        impls=tuple(impls),
        ops=tuple(ops.op(place).id for place in group),
    )


def _lives(step: TrainingStep, hold_gradients: bool) -> tuple[dict[str, int], dict[str, int]]:
    """First and last place among the backward ops at which each gradient-side storage is live. A gradient that is added
    to a held one is live up to the last op that reads its parameter."""
    end = len(step.backward)
    births = dict.fromkeys(sorted(step.tangents), -1)
    deaths = dict.fromkeys(births, end)
    read_at: dict[str, int] = {}
    for place, op in enumerate(step.backward):
        births.update(dict.fromkeys(step.made(op), place))
        for tensor in step.read(calls_of(op)):
            read_at[tensor] = place
    for tensor in births.keys() - deaths.keys():
        leaf = step.parameter_gradients.get(tensor, tensor) if hold_gradients else tensor
        deaths[tensor] = max(births[tensor], *(read_at.get(t, 0) for t in (tensor, leaf)))
    for tensor in step.gradients - (step.parameter_gradients.keys() if hold_gradients else frozenset()):
        if tensor in births:
            deaths[tensor] = end
    return births, deaths


def _bytes_in_use(step: TrainingStep, births: dict[str, int], deaths: dict[str, int], count: int) -> list[int]:
    """Gradient-side bytes while each backward op runs."""
    change = [0] * (count + 2)
    for tensor, birth in births.items():
        size = step.size(tensor)
        change[max(birth, 0)] += size
        change[min(deaths[tensor], count) + 1] -= size
    in_use = []
    total = 0
    for place in range(count):
        total += change[place]
        in_use.append(total)
    return in_use
