"""The checker's own search for kernels in which a thread may read what another one has overwritten.

Values are followed from each read of a tensor that the kernel writes: to a sum, which has finished before anything is
stored, or to memory or the wire, where they must be the same elements that are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.passes.fusion.program import Node, Program

VIEWS = {"Slice", "Load"}
SUMS = {"Norm", "ReduceTensor"}
ELSEWHERE = {"AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast", "AllToAll", "Send", "Permute", "MatMul",
             "Conv2d"}  # fmt: skip
"""Operations that need elements of other threads."""


def overwriting(schedule: Program, kernel: str, nodes: Sequence[Node]) -> Iterator[str]:
    """One finding for each tensor that the operations of a kernel overwrite while others may still read it."""
    written = {str(node.inputs[0]): node for node in nodes if node.op == "Update"}
    sums = _sums_before(schedule, nodes)
    for tensor, update in written.items():
        for reader in nodes:
            if tensor in _tensors(schedule, reader):
                wrong = _wrong(schedule, nodes, reader, update, sums)
                if wrong:
                    yield f"kernel {kernel}: {reader.name} reads {tensor}, which {update.name} overwrites, {wrong}"
                    break


def _tensors(schedule: Program, node: Node) -> set[str]:
    """The tensors that an operation reads, directly or through views."""
    found = set()
    for name in node.reads:
        value = schedule.by_name[name]
        while isinstance(value, Node) and value.op in VIEWS:
            value = schedule.by_name[str(value.inputs[0])]
        found.add(value.name)
    return found


def _sums_before(schedule: Program, nodes: Sequence[Node]) -> dict[str, int]:
    """How many sums of the kernel, one after the other, come before each operation."""
    found: dict[str, int] = {}
    made: dict[str, Node] = {}
    for node in nodes:
        before = [made[name] for name in _tensors(schedule, node) if name in made]
        found[node.name] = max((found[each.name] + (each.op in SUMS) for each in before), default=0)
        made[node.name] = node
    return found


def _wrong(schedule: Program, nodes: Sequence[Node], reader: Node, update: Node, sums: dict[str, int]) -> str:
    if reader.op in ELSEWHERE:
        return "for other threads"
    if sums[reader.name] > sums[update.name]:
        return "and comes after it"
    names = {node.name for node in nodes}
    waiting, seen = [reader], {reader.name}
    while waiting:
        node = waiting.pop()
        if node.op in SUMS:
            continue
        users = [each for each in schedule.nodes if node.name in _tensors(schedule, each)]
        kept = node.op == "Update" or node.name in schedule.outputs or any(x.name not in names for x in users)
        sent = any(each.op in ELSEWHERE and each.name in names for each in users)
        if (kept or sent) and node.type.shape != update.type.shape:
            return f"for the other elements of {node.name}"
        for each in users:
            if each.name in names and each.name not in seen and each.op not in ELSEWHERE:
                seen.add(each.name)
                waiting.append(each)
    return ""


def streaming(schedule: Program, overlap: str, chain: Sequence[Sequence[Node]]) -> Iterator[str]:
    """Findings for launches of an overlap that need all of their input first, or overwrite what is still read."""
    for number, nodes in enumerate(chain):
        for node in nodes:
            if node.op in SUMS and node.attribute("dim") != len(node.type.shape) - 1:
                yield f"overlap {overlap}: {node.name} needs all elements before its first output"
            if node.op == "Update":
                for before in (each for earlier in chain[:number] for each in earlier):
                    alike = before.op not in ELSEWHERE | SUMS and before.type.shape == node.type.shape
                    if str(node.inputs[0]) in _tensors(schedule, before) and not alike:
                        yield f"overlap {overlap}: {before.name} reads {node.inputs[0]}, which {node.name} overwrites"
