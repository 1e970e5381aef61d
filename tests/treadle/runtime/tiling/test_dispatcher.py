"""Whether DTensor's rules confirm the calls of a plan, asked without any data."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.treadle.runtime.tiling.models_to_cut import mlp, planned
from treadle.planner.passes.tiling.decisions import NodeTiling, TilingDecisions
from treadle.runtime.tiling.dispatcher import confirmed


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


def test_calls_of_a_plan_are_confirmed_and_wrong_ones_found(mesh) -> None:
    plan, trace = planned(mlp, (2,), {"0.weight": ("S0",), "3.weight": ("S1",)})
    found = confirmed(plan.decisions, trace, mesh)
    assert found.findings == ()
    assert found.calls > 5
    wrong = confirmed(_with(plan.decisions, "gelu", ("S1",), ("R",)), trace, mesh)
    assert wrong.findings == (
        "gelu (aten.gelu.default): the dispatcher would leave 'gelu' in ['S1'], the plan in ['R']",
    )
    wrong = confirmed(_with(plan.decisions, "gelu", ("P",), ("P",)), trace, mesh)
    assert "the dispatcher would read it in" in wrong.findings[0]


def _with(decisions: TilingDecisions, node: str, read: tuple[str, ...], made: tuple[str, ...]) -> TilingDecisions:
    nodes = tuple(
        NodeTiling(node=node, reads=(read,), makes=(made,)) if each.node == node else each for each in decisions.nodes
    )
    return msgspec.structs.replace(decisions, nodes=nodes)
