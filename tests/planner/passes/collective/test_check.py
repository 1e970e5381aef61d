"""The checker accepts what the planner makes and names the spot of every kind of damage."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

import treadle.planner.passes.collective.check as checker
from tests.planner.passes.collective.build import MESH, complete, line, problem_for, relay, relay_sketch, ring, switch
from tests.planner.plans import collective_plan
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Port, Transfer
from treadle.planner.passes.collective.check import check, check_against_inputs

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


@cache
def good(collective: str = "allgather", kind: str = "ring") -> CollectiveDecisions:
    hardware = {"ring": ring(4), "line": line(3), "switch": switch(3), "relay": relay(2, 10, 5)}[kind]
    sketch = relay_sketch(batching=True) if kind == "relay" else MESH
    size = problem_for(collective, hardware, sketch).input_bytes
    return collective_plan(collective, hardware, sketch, size_bytes=size).decisions


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("kind", ["ring", "line", "switch", "relay"])
def test_good_plans_pass(collective, kind):
    assert check(good(collective, kind)) == []


def edited(plan: CollectiveDecisions, index: int, **change) -> CollectiveDecisions:
    moves = list(plan.transfers)
    moves[index] = replace(moves[index], **change)
    return replace(plan, transfers=tuple(moves))


def dropped(plan: CollectiveDecisions, index: int) -> CollectiveDecisions:
    moves = plan.transfers[:index] + plan.transfers[index + 1 :]
    return replace(plan, transfers=moves, makespan_ns=max(move.arrive_ns for move in moves))


def shifted(plan: CollectiveDecisions, index: int, by: int) -> CollectiveDecisions:
    move = plan.transfers[index]
    return edited(plan, index, send_ns=move.send_ns + by, arrive_ns=move.arrive_ns + by)


def last(plan: CollectiveDecisions, **wanted) -> int:
    """Index of the last transfer with these fields."""
    return max(i for i, m in enumerate(plan.transfers) if all(getattr(m, k) == v for k, v in wanted.items()))


def second_hop(plan: CollectiveDecisions) -> int:
    return next(i for i, m in enumerate(plan.transfers) if m.send_ns > 0)


def doubled(plan: CollectiveDecisions) -> CollectiveDecisions:
    """The first transfer once more, long after everything."""
    first, late = plan.transfers[0], plan.makespan_ns
    length = first.arrive_ns - first.send_ns
    again = replace(first, send_ns=late, arrive_ns=late + length, batch=99)
    return replace(plan, transfers=(*plan.transfers, again), makespan_ns=late + length)


def damage() -> dict[str, tuple[CollectiveDecisions, str]]:
    gather, lined = good(), good(kind="line")
    scatter, reduced = good("reducescatter", "line"), good("allreduce", "line")
    ports, batched = good(kind="switch"), good(kind="relay")
    hop = second_hop(gather)
    crossing = next(i for i, m in enumerate(batched.transfers) if (m.src, m.dst) == (1, 2))
    on_port = next(i for i, m in enumerate(ports.transfers) if m.send_ns > 0)
    moved = ports.transfers[on_port]
    merging = next(
        i
        for i, m in enumerate(scatter.transfers)
        if any((m.chunk, m.src) == (o.chunk, o.dst) for o in scatter.transfers)
    )
    final = next(i for i, m in enumerate(reduced.transfers) if not m.reduce)
    return {
        "sent before it is held": (shifted(gather, hop, -9000), rf"transfers\[{hop}\].*before rank"),
        "a link that is not there": (edited(lined, 0, src=0, dst=2), r"transfers\[0\] .*no link 0 -> 2"),
        "an arrival too early": (edited(gather, 0, arrive_ns=8999), r"transfers\[0\] .*expected 9000"),
        "an arrival too late": (edited(gather, 0, arrive_ns=9001), r"transfers\[0\] .*expected 9000"),
        "an arrival at once": (edited(gather, 0, arrive_ns=0), r"transfers\[0\] .*arrives at 0"),
        "a transfer left out": (dropped(gather, len(gather.transfers) - 1), r"postcondition: chunk \d at rank \d"),
        "an unknown chunk": (edited(gather, 0, chunk=4), r"transfers\[0\] .*expected one below 4"),
        "another chunk": (
            edited(gather, 0, chunk=(gather.transfers[0].chunk + 2) % 4),
            r"transfers\[0\] .*before rank 0 holds",
        ),
        "a chunk delivered twice": (doubled(gather), r"holds chunk \d already"),
        "two messages at once on a link": (
            edited(lined, last(lined, src=1, dst=2), send_ns=lined.transfers[0].send_ns + 1, arrive_ns=9001),
            r"link 1 -> 2: transfers\[\d+\] and transfers\[\d+\] overlap",
        ),
        "two peers at once on a port": (
            edited(ports, on_port, send_ns=moved.send_ns - 4000, arrive_ns=moved.arrive_ns - 4000),
            r"port fabric rank \d (in|out): two peers at once",
        ),
        "a batch torn apart": (
            edited(batched, crossing, send_ns=batched.transfers[crossing].send_ns + 1),
            r"its batch 0 leaves at",
        ),
        "a batch priced as one chunk": (
            edited(batched, crossing, batch=7),
            r"transfers\[\d+\] .*arrives at",
        ),
        "a stage that made it worse": (replace(gather, ordering_ns=17_999), "ordering_ns: found 17999.*18000"),
        "a wrong makespan": (replace(gather, makespan_ns=17_999), "makespan_ns: found 17999.*18000"),
        "a cheaper link": (
            replace(gather, links=(replace(gather.links[0], alpha_ns=0), *gather.links[1:])),
            r"transfers\[\d+\] \(chunk \d, 0 -> 1\): arrives at",
        ),
        "a link twice": (replace(gather, links=(*gather.links, gather.links[0])), r"links\[8\]: a second link 0 -> 1"),
        "a port of no link": (
            replace(gather, ports=(Port(name="ghost", links=((0, 2),)),)),
            r"ports\[0\] \(ghost\): no link 0 -> 2",
        ),
        "a wrong chunk size": (replace(gather, chunk_bytes=gather.chunk_bytes - 1), "chunk_bytes: found"),
        "a root of an allgather": (replace(gather, root=0), "root: found 0, expected none"),
        "a broadcast without a root": (replace(good("broadcast"), root=None), "root: found None"),
        "a reduction in an allgather": (edited(gather, 0, reduce=True), r"transfers\[0\] .*adds nothing up"),
        "a contribution lost": (dropped(scatter, 0), r"postcondition: chunk \d at rank \d lacks the contributions"),
        "a contribution twice": (doubled(scatter), "a second time"),
        "a sum sent on too early": (shifted(scatter, merging, -1), "still writes chunk"),
        "two sums into one chunk at once": (mirrored(good(kind="line")), r"chunk \d at rank \d: transfers from"),
        "a partial sum passed as final": (
            edited(
                reduced,
                final,
                send_ns=0,
                arrive_ns=reduced.transfers[final].arrive_ns - reduced.transfers[final].send_ns,
            ),
            r"sent on as final without the contributions of",
        ),
        "a final value added": (edited(reduced, final, reduce=True), "a second time"),
    }


def mirrored(plan: CollectiveDecisions) -> CollectiveDecisions:
    """An allgather played backwards as a reducescatter: times mirrored, sums not serialized."""
    end = plan.makespan_ns
    moves = tuple(
        Transfer(m.chunk, m.dst, m.src, end - m.arrive_ns, end - m.send_ns, m.batch, True) for m in plan.transfers
    )
    numbers = {key: i for i, key in enumerate(sorted({(m.src, m.dst, m.send_ns) for m in moves}))}
    moves = tuple(replace(m, batch=numbers[m.src, m.dst, m.send_ns]) for m in moves)
    return replace(
        plan, collective="reducescatter", transfers=moves, input_bytes=plan.chunk_bytes * plan.ranks * plan.chunkup
    )


@pytest.mark.parametrize("name", sorted(damage()))
def test_damage_is_found_at_its_spot(name):
    broken, pattern = damage()[name]
    found = check(broken)
    assert any(re.search(pattern, finding) for finding in found), found


def test_against_the_inputs():
    plan = good()
    assert check_against_inputs(plan, ring(4), MESH) == []
    assert check_against_inputs(good(kind="relay"), relay(2, 10, 5), relay_sketch(batching=True)) == []
    assert "not among those the inputs give" in check_against_inputs(plan, line(4), MESH)[0]
    assert any("missing in the plan" in finding for finding in check_against_inputs(plan, complete(4), MESH))
    cheaper = replace(plan, links=(replace(plan.links[0], beta_ns=1), *plan.links[1:]))
    assert "link 0 -> 1: found link 1000 + 1 ns, the inputs give link 1000 + " in str(
        check_against_inputs(cheaper, ring(4), MESH)
    )
    unported = replace(good(kind="switch"), ports=())
    assert any("port fabric rank 0 out" in finding for finding in check_against_inputs(unported, switch(3), MESH))
    unbatched = check_against_inputs(good(kind="relay"), relay(2, 10, 5), relay_sketch(batching=False))
    assert any("which the sketch does not allow" in finding for finding in unbatched)


def test_the_checker_shares_no_code_with_the_methods():
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    ours = {module for module in imported if module and module.startswith("treadle.")}
    assert ours == {
        "treadle.planner.passes.collective.algorithm",
        "treadle.planner.passes.collective.check_switched",  # the same for what switches do
        "treadle.planner.passes.collective.collectives",  # what each collective promises
        "treadle.planner.documents.hardware",
        "treadle.planner.documents.sketch",
    }
