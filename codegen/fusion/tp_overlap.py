"""Overlap plans as the YAML that Megatron-LM reads (`--tp-comm-overlap-cfg`) and TransformerEngine executes.

A product whose partial sums are reduced while it runs is one of `proj_fprop` and `fc2_fprop`, a product that starts on
gathered pieces one of `qkv_fprop` and `fc1_fprop`; its shape decides which. Layers that are not named keep
TransformerEngine's own choice. Behind a product TransformerEngine reduces and scatters rows, and gathers them in the
layer that follows: this is Megatron-LM's `--sequence-parallel`, which the file needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.decisions import FusionDecisions, StageChoice
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Node, Program

FILE_NAME = "tp_comm_overlap.yaml"
MOST_SMS = 32
"""Multiprocessors that TransformerEngine's userbuffers use at most."""
SPLITS = (4, 2)
"""Pieces that a product is cut into, the first that its width can be divided by, as TransformerEngine does it."""
CLUSTER = 2
"""Thread blocks of a cluster, which must divide the multiprocessors (`cga_size`)."""


def layers_of(decisions: FusionDecisions) -> dict[str, dict[str, object]]:
    """Settings by layer name. Raises InputError for a plan in which no product overlaps with a collective, or whose
    rows do not come out even."""
    schedule = parse(decisions.schedule, "$.decisions.schedule")
    choices = {stage.name: stage for stage in decisions.stages}
    layers = dict(_layers(schedule, choices, decisions))
    if not layers:
        message = "found no product that overlaps with a collective, which is all that this target carries"
        beside = any(stage.own_ns is not None for stage in decisions.stages)
        raise InputError(message + ("; plan with --no-library, for a library's overlap with nothing" if beside else ""))
    return layers


def generate(decisions: FusionDecisions) -> dict[str, str]:
    """The YAML file. Raises InputError as `layers_of` does."""
    head = f"# Planned by treadle for {decisions.ranks} ranks; give it to Megatron-LM with --tp-comm-overlap-cfg.\n"
    return {FILE_NAME: head + yaml.safe_dump(layers_of(decisions), sort_keys=True)}


def _layers(
    schedule: Program, choices: dict[str, StageChoice], decisions: FusionDecisions
) -> Iterator[tuple[str, dict[str, object]]]:
    nodes = {node.name: node for node in schedule.nodes}
    for overlap in schedule.overlaps:
        for before, after in zip(overlap.members, overlap.members[1:], strict=False):
            ops = {name: {nodes[member].op for member in choices[name].members} for name in (before, after)}
            if ops[before] == {"MatMul"} and ops[after] & {"ReduceScatter", "AllReduce"}:
                inner, width, rows = _extents(nodes[before], schedule, decisions)
                _require_even(rows, before, decisions)
                sms = min(MOST_SMS, choices[after].channels or 1)
                splits = next((count for count in SPLITS if width % count == 0), 1)
                name = "fc2_fprop" if inner > width else "proj_fprop"
                settings = {"num_sm": sms, "cga_size": 1 if sms % CLUSTER else CLUSTER, "num_splits": splits}
                yield name, {"method": "pipeline", **settings, "set_sm_margin": 1}
            elif "AllGather" in ops[before] and ops[after] == {"MatMul"}:
                inner, width, rows = _extents(nodes[after], schedule, decisions)
                _require_even(rows, after, decisions)
                yield "fc1_fprop" if width > 3 * inner else "qkv_fprop", {"method": "ring_exchange", "aggregate": 0}


def _require_even(rows: int, product: str, decisions: FusionDecisions) -> None:
    if rows % decisions.ranks:
        message = f"found {rows} rows of {product} on {decisions.ranks} ranks, expected as many on each of them"
        raise InputError(message)


def _extents(product: Node, schedule: Program, decisions: FusionDecisions) -> tuple[int, int, int]:
    """Inner dimension, width and rows of a product over all ranks."""
    weight = schedule.by_name[str(product.inputs[1])].type.shape
    inner, width = (extent.value(decisions.extents) for extent in weight)
    rows = 1
    for extent in product.type.shape[:-1]:
        rows *= extent.value(decisions.extents)
    return inner, width, rows
