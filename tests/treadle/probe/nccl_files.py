"""Output of nccl-tests, and a log of NCCL, written for given times as the tools write them."""

from __future__ import annotations

import json
from collections.abc import Mapping

TESTS = {"allreduce": "all_reduce_perf", "allgather": "all_gather_perf", "reducescatter": "reduce_scatter_perf"}
SIZES = [8 << k for k in range(0, 28, 2)]


def as_json(times: Mapping[int, float], ranks: int, hosts: int = 1, collective: str = "allreduce") -> str:
    def result(time: float) -> dict[str, object]:
        return {"time": time, "alg_bw": 1.0, "bus_bw": 1.75, "nwrong": 0.0}

    devices = [
        {"rank": host * ranks // hosts, "group": 0, "pid": 7, "hostname": f"node{host}", "device": 0}
        for host in range(hosts)
    ]
    config = {"nthreads": 1, "ngpus": ranks // hosts, "validation": 1, "devices": devices}
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": result(time),
            "in_place": result(1.5 * time),
        }
        for size, time in times.items()
    ]
    test = f"./build/{TESTS[collective]}"
    raw = {"version": 2, "args": [test, "-J", "x"], "nccl_version": 22809, "config": config, "results": results}
    return json.dumps(raw)


def as_table(times: Mapping[int, float], ranks: int, hosts: int = 1, collective: str = "allreduce") -> str:
    lines = [f"# Collective test starting: {TESTS[collective]}", "# nThread 1 nGpus 1 minBytes 8", "# Using devices"]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid   {700 + rank} on      node{rank * hosts // ranks} device  0 [0000:04:00] H100"
        for rank in range(ranks)
    ]
    names = "time   algbw   busbw  #wrong"
    lines += ["#", f"#       size         count      type   redop    root     {names}     {names}"]
    lines += ["#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)"]
    lines += [
        f"{size:12}  {size // 4:12}     float     sum      -1  {time!r}  1.00  1.75  0  {1.5 * time!r}  1.00  1.75  0"
        for size, time in times.items()
    ]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.75", "#", ""])


def _log() -> str:
    """Lines of two processes of a node with eight GPUs on NVSwitch, a NIC for each two, mixed as they are written."""
    lines = ["Bootstrap : Using eth0:10.0.0.1<0>"]
    lines += ["NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>"]
    lines += ["=== System : maxBw 24.0 totalBw 240.0 ==="]
    for cpu in (0, 1):
        lines += [f"CPU/0-{cpu} (1/2/-1)"]
        for pair in (2 * cpu, 2 * cpu + 1):
            lines += [f"+ PCI[24.0] - PCI/0-{pair + 1}000 (1000c01010000000)"]
            for gpu in (2 * pair, 2 * pair + 1):
                lines += [f"{'':14}+ PCI[24.0] - GPU/0-{gpu + 16:x}000 ({gpu})", f"{'':28}+ NVL[240.0] - NVS/0"]
            lines += [f"{'':14}+ PCI[24.0] - NIC/0-{pair + 32:x}000"]
            lines += [f"{'':28}+ NET[25.0] - NET/0-{pair:x} (0/88b88e0003fd7010/1/25.000000)"]
        lines += [f"+ SYS[10.0] - CPU/0-{1 - cpu}"]
    lines += ["=" * 42, "GPU/0-10000 :GPU/0-10000 (0/5000.0/LOC) GPU/0-11000 (2/240.0/NVL) NVS/0 (1/240.0/NVL)"]
    lines += ["comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0", "Channel 00/24 :    0   1   2   3"]
    lines += ["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Connected all rings"]
    mixed = [f"node0:{7 + rank}:{9 + rank} [{rank}] NCCL INFO {line}" for line in lines for rank in (0, 3)]
    return "\n".join(["NCCL version 2.21.5+cuda12.4", *mixed, ""])


LOG = _log()
