"""Random small memory problems."""

from __future__ import annotations

from hypothesis import strategies as st

from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem

SMALL = st.integers(0, 4)
AGAIN = {
    "recompute_workspace_bytes": st.none() | SMALL,
    "recompute_time_ns": st.none() | st.integers(1, 5),
}


@st.composite
def problems(draw, max_nodes: int = 4, rich: bool = True) -> MemoryProblem:
    """Chains with skips; with `rich` also several implementations, intermediates, in-place and fixed nodes."""
    nodes: list[ForwardNode] = []
    for i in range(draw(st.integers(2, max_nodes))):
        ops = [j for j in range(i) if nodes[j].kind == "op"]
        inputs = tuple(sorted({*ops[-1:], *draw(st.sets(st.sampled_from(ops), max_size=1))})) if ops else ()
        if rich and ops and draw(st.integers(0, 3)) == 0:
            kind = {"kind": "intermediate", "creator": max(inputs)}
        else:
            kind = {"recomputable": not rich or draw(st.integers(0, 5)) > 0}
        impls = draw(
            st.lists(
                st.builds(Forward, workspace_bytes=SMALL, time_ns=st.integers(1, 5), **(AGAIN if rich else {})),
                min_size=1,
                max_size=2 if rich else 1,
            )
        )
        nodes.append(ForwardNode(op=f"f{i}", out_bytes=draw(SMALL), inputs=inputs, impls=tuple(impls), **kind))
    if rich:
        nodes = [_maybe_in_place(draw, i, nodes) for i in range(len(nodes))]
    bwd = []
    for k in reversed(range(draw(st.integers(1, max_nodes)))):
        impls = draw(
            st.lists(
                st.builds(
                    Backward,
                    needs=st.sets(st.integers(0, len(nodes) - 1), max_size=2).map(lambda s: tuple(sorted(s))),
                    workspace_bytes=SMALL,
                    time_ns=st.integers(1, 4),
                    grad_inplace=st.booleans() if rich else st.just(False),
                ),
                min_size=1,
                max_size=2 if rich else 1,
            )
        )
        bwd.append(
            BackwardNode(op=f"b{k}", out_grad_bytes=draw(SMALL), live_grad_bytes=draw(SMALL), impls=tuple(impls))
        )
    return MemoryProblem(version=1, budget_bytes=draw(st.integers(4, 20)), base={}, fwd=tuple(nodes), bwd=tuple(bwd))


def _maybe_in_place(draw, i: int, nodes: list[ForwardNode]) -> ForwardNode:
    node = nodes[i]
    last = {j: t for t, other in enumerate(nodes) for j in other.inputs}
    able = [j for j in node.inputs if last[j] == i and nodes[j].out_bytes == node.out_bytes]
    if not able or node.kind != "op" or not draw(st.booleans()):
        return node
    fields = {name: getattr(node, name) for name in node.__struct_fields__}
    least = min(impl.time(again) for impl in node.impls for again in (False, True))
    return ForwardNode(**{**fields, "inplace_of": able[0], "inplace_saves_ns": draw(st.integers(0, min(1, least)))})
