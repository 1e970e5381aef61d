"""The price of what switches do, by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.codegen.collective.test_switched import decided
from tests.planner.passes.collective.build import in_network
from treadle.codegen.collective.simulate_switched import simulate_switched
from treadle.planner.documents.hardware import ProtocolCost, Transport

TRANSPORT = Transport(launch_us=5, step_us=0.5, link_efficiency=0.5, LL=ProtocolCost(alpha_us=0.25, threadblock_gbps=1))
MACHINE = replace(in_network(4), transport=TRANSPORT)


# Meetings: 2 * (1 + 0.5 + 0.25) us. A broadcast of 1 MiB: 1.5 us and 8 us at half the rate. An allreduce of 2 KiB in
# one piece passes twice: 3 us, and 4 parts of 4 ns, twice, at half the rate.
def test_by_hand():
    assert simulate_switched(decided("broadcast", 4, 2**20), MACHINE, 2**20) == pytest.approx(5 + 3.5 + 1.5 + 16)
    assert simulate_switched(decided("allreduce", 4, 2048), MACHINE, 2048) == pytest.approx(5 + 3.5 + 3 + 0.064)


def test_other_sizes_keep_the_latencies():
    assert simulate_switched(decided("broadcast", 4, 2**20), MACHINE, 2**19) == pytest.approx(5 + 3.5 + 1.5 + 8)
