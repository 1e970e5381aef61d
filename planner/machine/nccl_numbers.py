"""The numbers of NCCL's model of itself, as of NCCL 2.28.3 (NVIDIA/nccl, src/graph/tuning.cc), by algorithm, protocol,
class of links and generation of GPUs. Latencies are us, rates GB/s (10^9 bytes per second).
"""

from __future__ import annotations

from typing import Literal

from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.nccl_costs import Algorithm, Method

Fabric = Literal["nvlink", "pcie", "network"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
Each = tuple[float, float, float]
"""One value for each protocol, or for 1, 2, and more nodes."""

BASE_US: dict[Algorithm, Each] = {
    "tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (8, 8, 8),
}  # fmt: skip
HOP_US: dict[Fabric, dict[Algorithm, Each]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25), "nvls_tree": (0, 0, 25),
               "pat": (0, 0, 4)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0),
             "pat": (0, 0, 4)},
    "network": {"tree": (5.0, 8.5, 14), "ring": (2.7, 4.0, 14), "nvls": (0, 0, 18), "nvls_tree": (0, 0, 14),
                "pat": (0, 0, 14)},
}  # fmt: skip
LL_GBPS = {"volta": (39.0, 39.0, 20.4), "ampere": (87.7, 22.5, 19.0), "hopper": (141.0, 45.0, 35.0),
           "blackwell": (282.0, 90.0, 70.0)}  # fmt: skip
"""Most that LL carries. From two nodes on the host counts: Intel as Volta, AMD as Ampere."""
RING_LL128_GBPS = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 73.4}
"""This and the next three: most of one channel."""
TREE_LL128_GBPS = {"volta": (20.0, 20.0, 20.0), "ampere": (20.0, 20.0, 20.0), "hopper": (36.7, 36.7, 29.0),
                   "blackwell": (55.6, 31.67, 20.0)}  # fmt: skip
TREE_GBPS = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0),
             "blackwell": (70.0, 42.8, 24.0)}  # fmt: skip
NVLS_TREE_GBPS = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (0.0, 57.7, 45.5),
                  "blackwell": (0.0, 96.0, 43.1)}  # fmt: skip
NVLS_SHARE = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
TREE_SHARE: dict[Protocol, str] = {
    "LL": "AAAA987777654456789AAAA",
    "LL128": "AAAAA9888766666689999AA",
    "Simple": "99999998766555567877899",
}
"""Tenths of its rate that a tree reaches, for 64 B, 128 B, ... 256 MiB; A is all of it."""
FIRST_SHARE = 64
NET_OVERHEAD_US = {"intel": 1.0, "amd": 2.0}
"""Least time of a step of rings over several nodes; three times for Simple."""
PLATEAU = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}
"""How much longer the latency of a Simple ring over several nodes is, from 64 bytes for a channel and rank on."""
CHANNELS = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 24}
"""Those of rings and trees over NVLink: as in logs of DGX-1 and of eight A100 and H100; assumed for Blackwell."""
PCIE_CHANNELS = 4
"""Assumed."""
NVLS_CHANNELS = 16
"""As in logs of eight H100."""
MOST_NVLS_RANKS = 32
METHODS: dict[Algorithm, tuple[Method, ...]] = {
    "ring": ("ring LL", "ring LL128", "ring Simple"), "tree": ("tree LL", "tree LL128", "tree Simple"),
}  # fmt: skip
THREADS: dict[Protocol, int] = {"LL": 512, "LL128": 640, "Simple": 512}
THREAD_BYTES: dict[Protocol, int] = {"LL": 8, "LL128": 8, "Simple": 64}
"""A channel is used for what fills its threads."""
GENERATIONS = {
    "volta": r"V100|TITAN V|T4\b|P100",
    "hopper": r"H100|H200|H800|H20\b|GH200",
    "blackwell": r"B100|B200|B300|GB\d00|RTX PRO|RTX 50",
}
