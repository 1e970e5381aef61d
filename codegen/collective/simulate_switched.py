"""The time of a collective that switches do: MSCCL++'s executor, or kernels with multimem loads and stores.

    launch + 2 meetings + depth * (alpha + step) + the time on ports / efficiency

A meeting is a flag from every rank to every other: alpha of the switch, alpha of LL and the cost of a step. Ranks meet
before the first load, when all inputs are there, and after the last store. `depth` is how often one chunk passes a
switch; the rest of the schedule is what its ports are busy for, at the share of their rate that messages reach too.
Threadblocks are taken to be enough to fill the ports.
"""

from __future__ import annotations

from collections import Counter

from treadle.planner.documents.hardware import Hardware, Transport
from treadle.planner.passes.collective.algorithm import CollectiveDecisions

MEETINGS = 2


def simulate_switched(decisions: CollectiveDecisions, hardware: Hardware, input_bytes: int) -> float:
    """us of a call with `input_bytes` of input on every rank."""
    transport = hardware.transport or Transport()
    alpha_ns = max(switch.alpha_ns for switch in decisions.switches)
    depth = max(Counter(step.chunk for step in decisions.switched).values())
    ports_ns = max(0, decisions.makespan_ns - depth * alpha_ns) * input_bytes / decisions.input_bytes
    step_us = alpha_ns / 1000 + transport.step_us
    meeting_us = step_us + transport.LL.alpha_us
    time_us = transport.launch_us + MEETINGS * meeting_us + depth * step_us
    return time_us + ports_ns / 1000 / transport.link_efficiency
