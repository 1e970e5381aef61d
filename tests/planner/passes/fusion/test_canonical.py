"""Canonical forms: blind to names and to the order of independent operations, to nothing else."""

# ruff: noqa: F403, F405 (programs are written as programs are)
from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.planner.passes.fusion.by_hand import SCHEDULES, attention, by_hand, sgd
from treadle.fusion import *
from treadle.planner.passes.fusion.canonical import canonical_form, canonical_hash
from treadle.planner.passes.fusion.program import Kernel, Overlap, Program


def shuffled(program: Program, seed: int) -> Program:
    """Other names for everything, another running order, kernels in another order of members."""
    chance = random.Random(seed)
    waiting, done, order = list(program.nodes), set(program.input_names), []
    while waiting:
        node = chance.choice([node for node in waiting if set(node.reads) <= done])
        waiting.remove(node)
        order.append(node)
        done.add(node.name)
    names = {name: f"{'_' * name.startswith('_')}x{i}" for i, name in enumerate(chance.sample(sorted(done), len(done)))}
    names |= {kernel.name: f"k{i}" for i, kernel in enumerate(program.kernels)}
    return Program(
        name="other",
        inputs=tuple(replace(value, name=names[value.name]) for value in program.inputs),
        nodes=tuple(
            replace(node, name=names[node.name], inputs=tuple(names.get(x, x) for x in node.inputs)) for node in order
        ),
        outputs=tuple(names[name] for name in program.outputs),
        kernels=tuple(
            Kernel(names[of.name], of.policy, tuple(chance.sample([names[x] for x in of.members], len(of.members))))
            for of in program.kernels
        ),
    )


@pytest.mark.parametrize("fixture", SCHEDULES)
def test_names_and_orders_do_not_count_and_all_else_does(fixture: str) -> None:
    found = {}
    for name, program in by_hand(fixture).items():
        found[canonical_hash(program)] = name
        for seed in range(3):
            other = shuffled(program, seed)
            assert canonical_form(other) == canonical_form(program)
            assert canonical_hash(other) == canonical_hash(program)
    assert len(found) == len(SCHEDULES[fixture][1])


def test_nested_kernels_are_distinct_from_flat_ones() -> None:
    nested, flat = attention("fused+"), attention("fused")
    assert {kernel.policy for kernel in nested.kernels} == {"ComputationFuse", "AllReduceFuse"}
    assert canonical_hash(nested) != canonical_hash(flat)


def test_overlaps_count() -> None:
    rs_c_ag = sgd("rs c ag")
    rs, p_s, ag = (node.name for node in rs_c_ag.nodes if node.op in ("ReduceScatter", "Update", "AllGather"))
    chains = [(rs, p_s), (p_s, ag), (rs, p_s, ag)]
    hashes = {canonical_hash(replace(rs_c_ag, overlaps=(Overlap("ol", chain),))) for chain in chains}
    assert len(hashes | {canonical_hash(rs_c_ag)}) == 4


@pytest.mark.parametrize("change", ["attribute", "operand", "layout", "swap", "output", "policy", "named"])
def test_everything_else_counts(change: str) -> None:
    program = attention("ar+")
    before = canonical_hash(program)

    def changed(op: str, **fields: object) -> Program:
        nodes = tuple(replace(node, **fields) if node.op == op else node for node in program.nodes)
        return replace(program, nodes=nodes)

    dropout = next(node for node in program.nodes if node.op == "Dropout")
    add = next(node for node in program.nodes if node.op == "Add" and not node.anonymous)
    if change == "attribute":
        other = changed("Dropout", attributes=(("key", "other"), ("p", 0.5)))
    elif change == "operand":
        other = changed("Dropout", inputs=(program.nodes[1].name,))
    elif change == "layout":
        inputs = tuple(replace(of, type=replace(of.type, layout=Sliced(1))) for of in program.inputs[:1])
        other = replace(program, inputs=(*inputs, *program.inputs[1:]))
    elif change == "swap":
        nodes = tuple(replace(of, inputs=of.inputs[::-1]) if of is add else of for of in program.nodes)
        other = replace(program, nodes=nodes)
    elif change == "output":
        other = replace(program, outputs=(*program.outputs, dropout.name))
    elif change == "policy":
        other = replace(program, kernels=(replace(program.kernels[0], policy="SendFuse"),))
    else:
        nodes = tuple(replace(of, name=f"v{of.name}") if of.anonymous else of for of in program.nodes)
        renamed = {of.name: f"v{of.name}" for of in program.nodes if of.anonymous}
        nodes = tuple(replace(of, inputs=tuple(renamed.get(x, x) for x in of.inputs)) for of in nodes)
        other = replace(program, nodes=nodes)
    assert canonical_hash(other) != before


def test_equal_computations_in_different_places_differ() -> None:
    """Two equal nodes, one of them in a kernel: its reader identifies it."""
    N = dims("N")
    x, y = Tensor("x", f32, [N], Replicated), Tensor("y", f32, [N], Replicated)
    first, second = Exp(x), Exp(x)
    left, right = first + y, second * y
    base = Execute("twins", [x, y], [left, right])
    kernels = [Kernel("k", "ComputationFuse", members) for members in (("first", "left"), ("second", "right"))]
    crossed = Kernel("k", "ComputationFuse", ("first", "right"))
    hashes = {canonical_hash(replace(base, kernels=(kernel,))) for kernel in (*kernels, crossed)}
    assert len(hashes) == 3


def test_the_hash_is_the_same_in_every_process() -> None:
    assert canonical_hash(Program("empty", (), (), ())) == "e850db7653e69320"
