"""The clusters of Espresso (section 4.8.1) and Cupcake (section 5.4), and what compressors cost on them, as a model.

The papers print few of the numbers that they measured. What is taken from them is cited; what is assumed or fitted to
one published figure says so, and every other figure is then a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from benchmarks.compression.networks import NETWORKS
from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve, Point
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.problem import VERSION, CompressionProblem, Gradient
from treadle.planner.passes.compression.timeline_of import time_ns

MIB = 1 << 20
PLATEAU = MIB
"""Elements of 4 MB, up to which encoding takes its launch (section 5.2.4)."""
FLOOR_US = {"randomk:0.01": 100, "dgc:0.01": 400, "efsignsgd": 270, "onebit": 400}
"""Encoding of small tensors on a V100: DGC 0.4 ms, signs above 0.25 ms (sections 5.2.3 and 5.2.4); random-k assumed."""
DECODED = ((1, 0.25), (8, 0.25), (64, 2.0))
"""Decoding of as many pieces over one encoding; assumed."""
HOST_LAUNCH_US, HOST_BYTES_PER_US = 50, 800
"""A host's encoding; the rate is fitted to one figure, GPT2 with CPU compression in table 4.1."""
FORWARD = 1 / 3
"""Share of the forward pass in an iteration on one GPU; assumed."""


@dataclass(frozen=True)
class Cluster:
    """`machines` with `devices` V100 each; alpha in us for a hop, rates in Gbit/s of a GPU's link and a machine's."""

    name: str
    machines: int
    devices: int
    intra: tuple[float, float]
    inter: tuple[float, float]


NVLINK = Cluster("NVLink, 100 Gbps", 8, 8, (3, 1200), (10, 55))
PCIE = Cluster("PCIe, 25 Gbps", 8, 8, (10, 20), (10, 25))
SERVER = Cluster("one server, PCIe", 1, 8, (10, 20), (10, 25))
SERVERS = Cluster("8 servers, NVLink, 25 Gbps", 8, 8, (3, 1200), (10, 25))
"""Rates as published, but 55 Gbit/s of 100 for TCP, and 20 of 100 for PCIe between 8 GPUs, the figure of Espresso's
published simulator. Alphas are assumed."""
MEASURED_US = {"ResNet50": 48e3}
"""Cupcake, section 5.2.3."""
FACTORS = {"GPT2": (NVLINK, 0.58), "BERT-base": (NVLINK, 0.51), "LSTM": (PCIE, 0.46), "ResNet101": (PCIE, 0.70)}
"""Scaling factors of FP32 with 64 GPUs: Espresso's table 4.1 and section 4.8.4."""
BATCHES, FLOPS = {"VGG16": 32, "UGATIT": 2}, 14e12
"""Where no factor is published: three passes over the products of a batch, at an assumed rate."""


def problem(network: str, cluster: Cluster, compressor: str, single_us: float | None = None) -> CompressionProblem:
    """An iteration that takes `single_us` on one GPU, by default `iteration_us`; its backward pass by work."""
    parameters = NETWORKS[network].backward
    total_ns = 1000 * (iteration_us(network) if single_us is None else single_us)
    backward, work = (1 - FORWARD) * total_ns, sum(each.work for each in parameters)
    done = [round(backward * reached / work) for reached in accumulate(each.work for each in parameters)]
    return CompressionProblem(
        version=VERSION,
        name=f"{network} on {cluster.name}, {compressor}",
        machines=cluster.machines,
        devices=cluster.devices,
        forward_ns=round(FORWARD * total_ns),
        gradients=tuple(
            Gradient(name=each.name, elements=each.elements, backward_ns=end - start)
            for each, start, end in zip(parameters, [0, *done], done, strict=False)
        ),
        intra=_link(*cluster.intra),
        inter=_link(*cluster.inter) if cluster.machines > 1 else None,
        compressors=(_device(compressor), _host(compressor)),
    )


@cache
def iteration_us(network: str) -> float:
    """An iteration on one GPU: as published, fitted to the published scaling factor of FP32, or by its products."""
    if network in MEASURED_US:
        return MEASURED_US[network]
    if network in BATCHES:
        work = sum(each.work for each in NETWORKS[network].backward)
        return 6 * BATCHES[network] * work / FLOPS * 1e6
    cluster, factor = FACTORS[network]
    low, high = 1e3, 1e7
    while high - low > 10:
        middle = (low + high) / 2
        made = problem(network, cluster, "dgc:0.01", middle)
        low, high = (middle, high) if middle * 1000 / time_ns(made, plain_groups(made)) < factor else (low, middle)
    return low


def _link(alpha_us: float, gigabits: float) -> GradientLink:
    return GradientLink(alpha_us=alpha_us, beta_us_per_MB=8 * MIB / (1000 * gigabits))


def _device(name: str) -> CompressorCost:
    floor = 1000 * FLOOR_US[name]
    return CompressorCost(
        name=name,
        encode=Curve(points=_plateau(floor)),
        decode=tuple(DecodeCurve(pieces=pieces, points=_plateau(round(share * floor))) for pieces, share in DECODED),
    )


def _plateau(floor: int) -> tuple[Point, ...]:
    return ((PLATEAU, floor), (2 * PLATEAU, 2 * floor))


def _host(name: str) -> CompressorCost:
    launch, end = 1000 * HOST_LAUNCH_US, 1000 * HOST_LAUNCH_US + 4 * PLATEAU * 1000 // HOST_BYTES_PER_US
    points = ((1, launch), (PLATEAU, end))
    decode = tuple(
        DecodeCurve(pieces=pieces, points=tuple((size, round(share * ns)) for size, ns in points))
        for pieces, share in DECODED
    )
    return CompressorCost(name=name, place="host", encode=Curve(points=points), decode=decode)
