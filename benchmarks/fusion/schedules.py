"""The schedules that CoCoNet compares (section 6), derived from the shipped programs by transformations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.overlaps import Chain, chains, overlap_call
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transform_calls import apply
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.overlapping import overlap
from treadle.planner.passes.fusion.transforms.reorder import reorder
from treadle.planner.passes.fusion.transforms.slicing import as_slice, dead, slice_intro
from treadle.planner.passes.fusion.transforms.split import split

PROGRAMS = Path(__file__).parents[2] / "examples" / "fusion"
Schedules = dict[str, Program]
EVERYTHING = AllowedTransforms(
    split_reduce_broadcast=True,
    merge=True,
    slice_intro=True,
    as_slice=True,
    computation_fuse=True,
    one_sided_fuse=True,
    send_fuse=True,
    all_to_all_fuse=True,
)

KERNELS = {
    "adam": (("avg", "m_", "v_", "m1", "v1", "p_", "ph_"),),
    "lamb": (("avg", "m_", "v_", "m1", "v1", "u"), ("p_", "ph_")),
}
"""Stages that AR-Opt computes in one kernel; LAMB's norms of whole tensors are kernels between its two."""


def program(name: str) -> Program:
    return parse((PROGRAMS / f"{name}.py").read_text(), f"{name}.py")


def optimizer(name: str) -> Schedules:
    """AR-Opt, RS-Opt-AG (GShard-Eq) and fuse(RS-Opt-AG) of `adam` or `lamb`."""
    given = program(name)
    whole = given
    for members in KERNELS[name]:
        whole = fuse(whole, members, "ComputationFuse").program
    moved = [stage.name for stage in stages(whole) if stage.name != "sum_"]
    parted = split(whole, "sum_", "ARSplitRSAG")
    scatter, gather = parted.made
    sliced = reorder(parted.program, gather, moved)
    schedule = sliced.program
    for state in ("m", "v", "p"):
        schedule = dead(as_slice(schedule, state).program, sliced.gathers[f"{state}_"]).program
    together = [scatter, *sliced.made, sliced.gathers["ph_"]]
    return {
        "unfused": given,
        "AR-Opt": whole,
        "RS-Opt-AG": schedule,
        "fuse(RS-Opt-AG)": fuse(schedule, together, "AllReduceFuse").program,
    }


def moments_sliced() -> Program:
    """Adam with its moments sliced and the master copy of the parameters gathered and kept whole."""
    whole = optimizer("adam")["AR-Opt"]
    parted = split(whole, "sum_", "ARSplitRSAG")
    sliced = reorder(parted.program, parted.made[1], [stage.name for stage in stages(whole) if stage.name != "sum_"])
    schedule = sliced.program
    for state in ("m", "v"):
        schedule = dead(as_slice(schedule, state).program, sliced.gathers[f"{state}_"]).program
    return schedule


def tail(name: str) -> Schedules:
    """Megatron-LM, MM-AR-C, MM-RS-C-AG and ol(MM,fuse(RS-C-AG)) of `attention` or `mlp`."""
    given = program(name)
    compute = [stage.name for stage in stages(given) if stage.name not in ("sum_", "layer")]
    fused = fuse(given, compute, "ComputationFuse", "compute").program
    parted = split(fused, "sum_", "ARSplitRSAG")
    scatter, gather = parted.made
    sliced = reorder(parted.program, gather, ["compute"])
    together = fuse(sliced.program, [scatter, *sliced.made, *sliced.gathers.values()], "AllReduceFuse", "far").program
    return {
        "Megatron-LM": given,
        "MM-AR-C": fused,
        "MM-RS-C-AG": sliced.program,
        "MM; fuse(RS-C-AG)": together,
        "ol(MM,fuse(RS-C-AG))": overlap(together, ["layer", "far"]).program,
        "ol(MM,AR)": overlap(given, ["layer", "sum_"]).program,
    }


def pipeline() -> Schedules:
    """Megatron-LM, AR-C-P2P-AG, RS-C-P2P-AG and ol(RS,fuse(C-P2P),AG)."""
    given = program("pipeline")
    views = slice_intro(given, "sum_")
    first = reorder(views.program, views.made[1], ["c", "o"]).program
    parted = split(given, "sum_", "ARSplitRSAG")
    scatter, gather = parted.made
    sliced = reorder(parted.program, gather, ["c", "o"])
    sent = fuse(sliced.program, sliced.made, "SendFuse", "sent").program
    (whole,) = sliced.gathers.values()
    return {
        "Megatron-LM": given,
        "AR-C-P2P-AG": first,
        "RS-C-P2P-AG": sliced.program,
        "ol(RS,fuse(C-P2P),AG)": overlap(sent, [scatter, "sent", whole]).program,
    }


def overlap_choices(program: Program) -> Iterator[tuple[tuple[Chain, ...], Program]]:
    """Every set of disjoint chains of the program's stages that may overlap, the empty one first, with its schedule."""
    legal = tuple(chains(program).programs)

    def more(chosen: tuple[Chain, ...], made: Program, at: int) -> Iterator[tuple[tuple[Chain, ...], Program]]:
        yield chosen, made
        used = {name for chain in chosen for name in chain}
        for number in range(at, len(legal)):
            if used.isdisjoint(legal[number]):
                try:
                    further = apply(made, overlap_call(legal[number])).program
                except InvalidTransform:
                    continue
                yield from more((*chosen, legal[number]), further, number + 1)

    yield from more((), replace(program, overlaps=()), 0)
