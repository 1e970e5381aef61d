"""Compression plans of tests."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.documents.compression_costs import CompressorCost, Curve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Certificate, Plan, Prediction, Provenance
from treadle.planner.machine.compressors import ALGORITHMS
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup, Sent
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient
from treadle.planner.passes.compression.timeline_of import order_of, tasks_of, time_ns
from treadle.planner.timeline.simulator import simulate

CURVE = Curve(points=((1, 10), (1000, 100)))
WIRE = Curve(points=((0, 0), (1, 4)))
LINK = GradientLink(alpha_us=1.0, beta_us_per_MB=100.0)


def decisions_of(
    gradients: Sequence[tuple[str, int]],
    groups: Sequence[tuple[int, int, str | None, tuple[str, ...]]],
    machines: int = 1,
    devices: int = 2,
) -> CompressionDecisions:
    """Names and elements of gradients; first, last, compressor and steps of groups. Compressors other than treadle's
    own send float32."""
    names = dict.fromkeys(name for _, _, name, _ in groups if name is not None)
    costs = tuple(
        CompressorCost(
            name=name, place=place, encode=CURVE, decode=(), wire=None if name.partition(":")[0] in ALGORITHMS else WIRE
        )
        for name in names
        for place in ("device", "host")
    )
    problem = CompressionProblem(
        version=1,
        name="test",
        machines=machines,
        devices=devices,
        gradients=tuple(Gradient(name=name, elements=size, backward_ns=100) for name, size in gradients),
        intra=LINK if devices > 1 else None,
        inter=LINK if machines > 1 else None,
        compressors=costs,
        planned=CURVE,
    )
    made = tuple(GradientGroup(first=a, last=b, compressor=name, steps=steps) for a, b, name, steps in groups)
    tasks, resources = tasks_of(problem, made)
    order: tuple[Sent, ...] = order_of(made, tasks, simulate(tasks, resources))
    time = time_ns(problem, made)
    return CompressionDecisions(
        problem=problem, groups=made, order=order, time_ns=time, uncompressed_ns=time, sent_bytes=0
    )


def plan_of(decisions: CompressionDecisions) -> Plan[CompressionDecisions]:
    certificate = Certificate(
        verdict="accepted", checker="test", objective=1, lower_bound=1, unit="ns", argument="test", gap=0, optimal=False
    )
    return Plan(
        version=1,
        decisions=decisions,
        prediction=Prediction(time_us=decisions.time_ns / 1e3),
        certificate=certificate,
        provenance=Provenance(tool="test", method="test"),
    )
