"""Schedules in CoCoNet's short notation: `MM; RS; C'; AG`, `ol(MM, fuse(RS-C-AG))` (section 6).

AR, RS, AG, A2A are collectives, P2P a send, MM a product, C computation, primed where it runs on slices or on one rank.
Where there are several of a kind they are numbered, or named after the tensor that they gather; RS(0) divides dimension
0, RS the flat tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from treadle.planner.passes.fusion.layouts import FLAT, At, Sliced
from treadle.planner.passes.fusion.program import Node, Program
from treadle.planner.passes.fusion.stages import Stage, behind, groups

SHORT = {
    "allreduce": "AR",
    "reducescatter": "RS",
    "allgather": "AG",
    "reduce": "Red",
    "broadcast": "BC",
    "alltoall": "A2A",
    "send": "P2P",
    "matmul": "MM",
    "convolution": "Conv",
    "permute": "Perm",
}

LEGEND = {
    "ol": "ol(a, b) launches that overlap",
    "fuse": "fuse(a-b) one kernel",
    "AR": "AR AllReduce",
    "RS": "RS ReduceScatter",
    "AG": "AG AllGather",
    "Red": "Red Reduce",
    "BC": "BC Broadcast",
    "A2A": "A2A AllToAll",
    "P2P": "P2P Send",
    "MM": "MM MatMul",
    "Conv": "Conv Conv2d",
    "Perm": "Perm Permute",
    "C": "C computation",
    "'": "' on slices or one rank",
}


def legend(text: str) -> str:
    """The meaning of the words that occur in the notation of schedules."""
    words = {re.sub(r"[0-9]*$", "", word) if word != "A2A" else word for word in re.findall(r"\w+|'", text)}
    return ", ".join(meaning for word, meaning in LEGEND.items() if word in words)


def notation(program: Program) -> str:
    """All launches in order, overlapped ones as `ol(..)`."""
    together = groups(program)
    labels = _labels(program, [stage for group in together for stage in group])
    texts = []
    for group in together:
        parts = [_launch(stage, labels) for stage in group]
        texts.append(f"ol({', '.join(parts)})" if len(parts) > 1 else parts[0])
    return "; ".join(texts)


def _launch(stage: Stage, labels: dict[str, str]) -> str:
    if stage.kind.startswith("fused "):
        return f"fuse({'-'.join(labels[leaf.name].rstrip(chr(39)) for leaf in _leaves(stage))})"
    return labels[stage.name]


def _leaves(stage: Stage) -> Iterator[Stage]:
    """What a fused collective is made of; kernels of computation count as one."""
    if not stage.kind.startswith("fused "):
        yield stage
    for inner in stage.inside if stage.kind.startswith("fused ") else ():
        yield from _leaves(inner)


def _labels(program: Program, launched: Iterable[Stage]) -> dict[str, str]:
    leaves = [leaf for stage in launched for leaf in _leaves(stage)]
    kinds = [SHORT.get(leaf.kind, "C") for leaf in leaves]
    labels = {}
    for at, (leaf, short) in enumerate(zip(leaves, kinds, strict=True)):
        several = kinds.count(short) > 1
        if short == "AG" and several:
            text = f"AG({_gathered(program, leaf.nodes[-1])})"
        elif short == "RS" and (dim := leaf.nodes[-1].attribute("dim", FLAT)) != FLAT:
            text = f"RS({dim})"
        else:
            text = f"{short}{kinds[: at + 1].count(short)}" if several else short
        apart = short not in ("RS", "AG", "Red", "BC") and isinstance(leaf.nodes[-1].type.layout, Sliced | At)
        labels[leaf.name] = text + "'" * apart
    return labels


def _gathered(program: Program, gather: Node) -> str:
    """The tensor that an AllGather completes."""
    source = program.by_name[behind(program, str(gather.inputs[0]))]
    return str(source.inputs[0]) if isinstance(source, Node) and source.op == "Update" else source.name
