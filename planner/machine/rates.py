"""What pricing takes from a hardware profile: rates in bytes per us, latencies of hops, what is assumed without it.

Every value that the profile does not give has its default here, with its source in `Machine.assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Literal

from treadle.planner.documents.hardware import TEARING, Device, Hardware, Link, Switch, Transport
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.machine.nodes import nic_sets
from treadle.planner.machine.products import (
    CONVOLVED,
    LARGEST,
    Multiprocessor,
    Product,
    best_rate,
    multiprocessor,
    tile_of,
    tile_us,
)

MB = 1 << 20
EFFICIENCY = 0.8
LAUNCH_US = 5.0
MULTIPROCESSORS = 108
MEMORY_BANDWIDTH = 1.555e12
FLOPS = {"float64": 9.7e12, "float32": 1.95e13, "bfloat16": 3.12e14, "float16": 3.12e14}
CPU_SHARE: dict[Dtype, float] = {"f16": 0.11, "bf16": 0.23, "f32": 0.36, "f64": 0.13}
"""Share of a core's peak in f32 that generated products reach, compiled by g++: measured on an EPYC for 1024 rows,
columns and summands, where PyTorch on one thread reaches 86 GFLOP/s."""
CHANNELS = 32
Maker = Literal["own", "library"]
"""What makes a matrix product: a generated kernel, or a library such as cuBLAS, whose calls overlap with nothing."""
LEAST_BETA = 1e-6
"""us per MB: links that cost nothing are taken to be as fast as this."""
REGISTER_PRESSURE = 0.02

ASSUMED = {
    "efficiency": f"assumed: kernels reach {EFFICIENCY:g} of the stated memory bandwidth, libraries of the GEMM rate",
    "launch_us": "assumed: 5 us for a kernel launch, as in the profile p3-v100-16gb",
    "multiprocessors": "NVIDIA A100 data sheet: 108",
    "memory_bandwidth": "NVIDIA A100 data sheet, 40 GB: 1555 GB/s",
    "flops": "NVIDIA A100 data sheet, without sparsity",
    "gemm_flops": "generated products are modelled by what a multiprocessor does",
    "channels": "NCCL 2.6.4, which CoCoNet builds on: at most 32",
    "hops": "NCCL 2.7, src/graph/tuning.cc: latencies of the ring by protocol, or the alpha of the link where longer",
    "transport": "the rates of eight A100, as in `simulate`",
    "register_pressure": (
        "fitted to one published figure, that Adam on 256 V100 is fastest fused from 2^17 elements on and not at 2^16 "
        "(CoCoNet, section 6.1), which gives the reason but no number"
    ),
}

BASE_US = {"LL": 3.6, "LL128": 10.0, "Simple": 8.4}
HOP_US = {
    "nvlink": {"LL": 0.47, "LL128": 1.9, "Simple": 3.4},
    "pcie": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
    "network": {"LL": 2.7, "LL128": 4.0, "Simple": 9.6},
}
WIRE_SHARE = {"LL": 0.5, "LL128": 120 / 128, "Simple": 1.0}
"""Payload of a line: 8 of 16 bytes, 120 of 128, all of it (CoCoNet, section 5.1; NCCL)."""
NVLINK_KINDS = ("nvlink", "nvswitch", "xgmi")
DTYPES: dict[Dtype, tuple[str, ...]] = {
    "f16": ("float16", "bfloat16", "float32"),
    "bf16": ("bfloat16", "float16", "float32"),
    "f32": ("float32", "float64"),
    "f64": ("float64",),
}


@dataclass(frozen=True)
class Protocol:
    """How a message gets to the next rank. Rates are of payload."""

    name: str
    base_us: float
    """Time of a collective before its first step."""
    node_us: float
    """Time of a hop inside a node."""
    network_us: float
    wire_share: float
    """Payload's share of what links carry."""
    channel_rate: float
    """What one channel, a threadblock, sends and receives."""


@dataclass(frozen=True, eq=False)
class Machine:
    """`nodes` equal nodes of `per_node` ranks; rates are bytes per us that kernels reach, in each direction.

    Compared by identity: prices are cached by machine.
    """

    name: str
    nodes: int
    per_node: int
    node_rate: float
    """Rate of one rank into the links of its node; 0 without links."""
    nic_rate: float
    nics: int
    """Rate of one node."""
    multiprocessors: int
    memory_rate: float
    channel_memory_rate: float
    """Loads and stores of one threadblock."""
    flops: dict[str, float]
    """By dtype name of programs: FLOP per us that a GEMM of a library reaches."""
    product_rates: dict[str, float]
    """The same of a generated one, measured or modelled: no product exceeds it."""
    processor: Multiprocessor | None
    """What tiles of generated products are modelled on; None for CPUs."""
    launch_us: float
    collective_launch_us: float
    step_us: float
    """Fixed cost of a step to its threadblock."""
    channels: int
    """At most, of one collective."""
    register_pressure: float
    """By how much steps of a collective that computes are slower: it needs more registers, so fewer threads run."""
    protocols: tuple[Protocol, ...]
    assumed: dict[str, str] = field(default_factory=dict)
    """What the profile does not say, and where its value comes from."""
    makers: tuple[Maker, ...] = ("own", "library")
    """Who may make products, the first where both take as long."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def base_us(self, protocol: str) -> float:
        return next(x.base_us for x in self.protocols if x.name == protocol)

    def handover_us(self, protocol: str) -> float:
        """From one kernel to another on the same device: store, fence, flag and load are those of a hop in a node."""
        return next(x.node_us for x in self.protocols if x.name == protocol)

    @cached_property
    def with_library(self) -> Machine:
        """The same machine with the products of a library, such as cuBLAS, whatever they overlap with."""
        return replace(self, makers=("library",))

    @cached_property
    def without_library(self) -> Machine:
        """The same machine with generated products only."""
        return replace(self, makers=("own",))

    def rate(self, dtype: Dtype) -> float:
        """FLOP per us that no product of this dtype exceeds. Raises InputError for one that is not multiplied."""
        return max(self._rate(dtype, maker) for maker in self.makers)

    def _rate(self, dtype: Dtype, maker: Maker) -> float:
        if dtype not in self.flops:
            raise InputError(f"found a MatMul of {dtype}, expected one of {', '.join(self.flops)}")
        return self.product_rates[dtype] if maker == "own" else self.flops[dtype]

    def tiles(self, product: Product, maker: Maker) -> int:
        """How many tiles its result is made of."""
        own = maker == "own" and product.op == "MatMul"
        tile = tile_of(product.rows, product.columns, product.dtype) if own else (LARGEST, LARGEST)
        return max(1, -(-product.rows // tile[0]) * -(-product.columns // tile[1]))

    def product_us(self, product: Product, free: int, maker: Maker) -> float:
        """us of a product on `free` multiprocessors. Raises InputError as `rate` does."""
        rate, tiles = self._rate(product.dtype, maker), self.tiles(product, maker)
        if maker == "library" or self.processor is None:
            return product.flops / rate * self.multiprocessors / min(free, tiles)
        if product.op == "Conv2d":
            return product.flops / (2 * CONVOLVED * self.processor.clock) / min(free, tiles)
        tile = tile_of(product.rows, product.columns, product.dtype)
        modelled = self.multiprocessors * best_rate(product.dtype, self.processor)
        return ceil(tiles / free) * tile_us(product.dtype, tile, product.depth, self.processor) * modelled / rate

    def nodes_of(self, ranks: int) -> int:
        """How many nodes a group of consecutive ranks lies on. Raises InputError when it does not fit."""
        if ranks > self.ranks:
            raise InputError(f"found {ranks} ranks, expected at most the {self.ranks} of {self.name}")
        return -(-ranks // self.per_node)


def machine_of(hardware: Hardware) -> Machine:
    """The machine of a profile. Raises InputError when one of its links carries no costs or its nodes are unequal."""
    if not hardware.is_even:
        at = "$.other_nodes" if hardware.other_nodes else "$.network.groups"
        raise InputError("found unequal nodes, expected equal ones for fusion", where=hardware.name, path=at)
    if hardware.network is not None and hardware.network.uplinks:
        found = "found uplinks, expected none for fusion, which has no price for them"
        raise InputError(found, where=hardware.name, path="$.network.uplinks")
    device = hardware.devices[0]
    transport = hardware.transport or Transport()
    efficient = transport.link_efficiency
    given = {
        "launch_us": device.launch_us > 0,
        "multiprocessors": device.multiprocessors is not None,
        "memory_bandwidth": device.memory_bandwidth is not None,
        "flops": bool(device.peak_flops),
        "gemm_flops": bool(device.gemm_flops),
        "hops": hardware.transport is not None,
        "transport": hardware.transport is not None,
    }
    flops = device.peak_flops or FLOPS
    count = device.multiprocessors or MULTIPROCESSORS
    processor = multiprocessor(flops, count) if device.kind == "gpu" else None
    launch = device.launch_us or LAUNCH_US
    kind, alpha, node_rate = fabric_of(hardware)
    if transport.device_gbps is not None:
        node_rate = min(node_rate, transport.device_gbps * 1e3 / efficient)
    network, sets = hardware.network, nic_sets(hardware)
    ports, together = len(sets) or hardware.devices_per_node, min((rate for _, rate in sets), default=1.0)
    return Machine(
        name=hardware.name,
        nodes=hardware.nodes,
        per_node=hardware.devices_per_node,
        node_rate=node_rate * efficient,
        nic_rate=MB / network.beta_us_per_MB * efficient * together if network else 0.0,
        nics=ports,
        multiprocessors=count,
        memory_rate=(device.memory_bandwidth or MEMORY_BANDWIDTH) * EFFICIENCY / 1e6,
        channel_memory_rate=2e3 * transport.local_gbps,
        flops={dtype: peak * EFFICIENCY / 1e6 for dtype, peak in _by_dtype(flops).items()},
        product_rates=_product_rates(device, flops, processor),
        processor=processor,
        launch_us=launch,
        collective_launch_us=transport.launch_us if hardware.transport else launch,
        step_us=transport.step_us,
        channels=min(CHANNELS, count - 1),
        register_pressure=REGISTER_PRESSURE,
        protocols=tuple(
            _protocol(name, hardware, kind, alpha)
            for name in ("LL", "LL128", "Simple")
            if name != "LL128" or kind not in TEARING
        ),
        assumed={what: why for what, why in ASSUMED.items() if not given.get(what, False)},
    )


def _by_dtype(flops: Mapping[str, float]) -> dict[Dtype, float]:
    """Peak rates by dtype name of programs: the dtype's own, else that of one it may be multiplied in."""
    found = {dtype: next((flops[name] for name in names if name in flops), None) for dtype, names in DTYPES.items()}
    return {dtype: peak for dtype, peak in found.items() if peak is not None}


def _product_rates(device: Device, flops: Mapping[str, float], processor: Multiprocessor | None) -> dict[str, float]:
    """FLOP per us that generated products reach: as measured, or as modelled."""
    rates: dict[str, float] = {}
    for dtype, peak in _by_dtype(flops).items():
        measured = device.gemm_flops.get(DTYPES[dtype][0])
        if measured is not None:
            rates[dtype] = measured / 1e6
        elif device.kind == "cpu":
            rates[dtype] = flops.get("float32", peak) * CPU_SHARE[dtype] / 1e6
        elif processor is None:
            rates[dtype] = peak * EFFICIENCY / 1e6
        else:
            rates[dtype] = (device.multiprocessors or MULTIPROCESSORS) * best_rate(dtype, processor)
    return rates


def _protocol(name: str, hardware: Hardware, kind: str, alpha: float) -> Protocol:
    transport = hardware.transport or Transport()
    cost = transport.protocol(name)
    network = hardware.network.alpha_us if hardware.network else 0.0
    rate, share = cost.threadblock_gbps * 1e3, WIRE_SHARE[name]
    if hardware.transport is not None:
        fixed = cost.alpha_us + transport.step_us
        return Protocol(name, 0.0, alpha + fixed, network + fixed, share, rate)
    inside = HOP_US["nvlink" if kind in NVLINK_KINDS else "pcie"][name]
    return Protocol(name, BASE_US[name], max(inside, alpha), max(HOP_US["network"][name], network), share, rate)


def fabric_of(hardware: Hardware) -> tuple[str, float, float]:
    """Kind and alpha of what joins the devices of a node, and the rate of the worst joined device into it, in bytes
    per us.

    Of several kinds of link the one that carries most counts. Raises InputError when one carries no costs.
    """
    rates: dict[str, dict[int, float]] = {}
    alphas: dict[str, float] = {}
    ends: list[tuple[str, Link | Switch, tuple[int, ...]]] = [
        *((f"$.links[{i}]", link, (link.src,)) for i, link in enumerate(hardware.links)),
        *((f"$.switches[{i}]", switch, switch.members) for i, switch in enumerate(hardware.switches)),
    ]
    for path, joint, devices in ends:
        if joint.alpha_us is None or joint.beta_us_per_MB is None:
            raise InputError("found no alpha_us or no beta_us_per_MB, expected both", where=hardware.name, path=path)
        by_device = rates.setdefault(joint.kind, {})
        for device in devices:
            by_device[device] = by_device.get(device, 0.0) + MB * joint.count / max(joint.beta_us_per_MB, LEAST_BETA)
        alphas[joint.kind] = max(alphas.get(joint.kind, 0.0), joint.alpha_us)
    if not rates:
        return "none", 0.0, 0.0
    kind = max(sorted(rates), key=lambda name: sum(rates[name].values()))
    return kind, alphas[kind], min(rates[kind].values())
