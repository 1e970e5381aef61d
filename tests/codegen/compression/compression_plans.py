"""A compression plan without a search, for code generation, commands and reports."""

from __future__ import annotations

from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Plan, Provenance
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup
from treadle.planner.passes.compression.problem import VERSION, CompressionProblem, Gradient
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified

IN_NODES = ("reduce-scatter@intra", "compress@device", "allgather@inter", "decompress@device", "allgather@intra")
PLAIN = ("reduce-scatter@intra", "allreduce@inter", "allgather@intra")


def small_problem(name: str = "three layers") -> CompressionProblem:
    """Three gradients on two nodes of two ranks with a slow link between them."""
    cost = CompressorCost(
        name="dgc:0.01",
        encode=Curve(points=((4096, 60_000), (1 << 20, 500_000))),
        decode=(DecodeCurve(pieces=2, points=((4096, 30_000), (1 << 20, 250_000))),),
    )
    return CompressionProblem(
        version=VERSION,
        name=name,
        machines=2,
        devices=2,
        forward_ns=2_000_000,
        gradients=(
            Gradient(name="head.weight", elements=1 << 20, backward_ns=1_500_000),
            Gradient(name="body.weight", elements=1 << 19, backward_ns=1_000_000),
            Gradient(name="body.bias", elements=1 << 10, backward_ns=500_000),
        ),
        intra=GradientLink(alpha_us=1, beta_us_per_MB=42),
        inter=GradientLink(alpha_us=30, beta_us_per_MB=839),
        compressors=(cost,),
    )


def compressed(problem: CompressionProblem) -> tuple[GradientGroup, ...]:
    """The large gradients compressed between nodes, the last one with them."""
    return (
        GradientGroup(first=0, last=0, compressor="dgc:0.01", steps=IN_NODES),
        GradientGroup(first=1, last=2, compressor="dgc:0.01", steps=IN_NODES),
    )


def small_decisions(name: str = "three layers") -> CompressionDecisions:
    problem = small_problem(name)
    every = tuple(GradientGroup(first=at, last=at, compressor="dgc:0.01", steps=IN_NODES) for at in range(3))
    rivals = {"uncompressed": plain_groups(problem), "HiTopKComm": every}
    return decided(problem, compressed(problem), rivals)


def plan_with(decisions: CompressionDecisions) -> Plan[CompressionDecisions]:
    least = decisions.problem.forward_ns + decisions.problem.backward_ns
    return certified(
        decisions,
        time_ns=decisions.time_ns,
        bound=Bound(least, Argument("operators")),
        sentence=lambda bound: bound.argument.printed({"operators": "all operators, without any exchange"}),
        check=check,
        provenance=Provenance(tool="treadle", method="hand"),
        inputs={},
    )
