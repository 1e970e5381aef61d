"""Output of nccl-tests, written for given times as the tool writes it."""

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
