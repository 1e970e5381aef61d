"""nccl-tests output: table and JSON say the same, and what cannot be fitted is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.treadle.probe.nccl_files import SIZES, as_json, as_table
from treadle.planner.errors import InputError
from treadle.probe.nccl_tests import CollectiveTimes, read_times

TIMES = {size: 20 + size / 1e4 for size in SIZES}


def test_table_and_json_of_one_run_give_the_same_times() -> None:
    expected = CollectiveTimes("allreduce", 16, 2, TIMES)
    assert read_times(as_json(TIMES, 16, 2), "x") == expected
    assert read_times(as_table(TIMES, 16, 2), "x") == expected


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_collective_is_that_of_the_test(collective: str) -> None:
    for text in (as_json(TIMES, 8, 1, collective), as_table(TIMES, 8, 1, collective)):
        found = read_times(text, "x")
        assert found is not None
        assert found.collective == collective


def test_a_table_among_lines_of_mpirun_and_of_nccl() -> None:
    table = as_table(TIMES, 8)
    mixed = [
        f"[1,0]<stdout>:{line}\n[1,3]<stderr>:node0:7:8 [3] NCCL INFO Connected all rings" for line in table.split("\n")
    ]
    assert read_times("\n".join(mixed), "x") == read_times(table, "x")


def test_an_older_table_without_redop_root_and_name_in_a_file_that_has_it() -> None:
    rows = "\n".join(
        f" {size} {size // 4} float  {time} 1.0 1.7 4e-07  {time} 1.0 1.7 N/A" for size, time in TIMES.items()
    )
    text = (
        "#   Rank  0 Pid  7 on  node0 device  0 [0x07] A100\n#   Rank  1 Pid  8 on  node0 device  1 [0x0b] A100\n"
        "#  size  count  type   redop   time   algbw   busbw  error   time   algbw   busbw  error\n" + rows
    )
    assert read_times(text, "logs/all_gather_perf.txt") == CollectiveTimes("allgather", 2, 1, TIMES)
    with pytest.raises(InputError, match="found no name of a test"):
        read_times(text, "logs/x.txt")


@pytest.mark.parametrize("text", ["", "GPU0 GPU1\n", '{"gpus_per_node": 8}', "<system/>", '{"a": "nccl_version"}'])
def test_other_files_are_left_to_others(text: str) -> None:
    assert read_times(text, "x") is None


def edited(**fields: Any) -> str:
    raw = json.loads(as_json(TIMES, 8))
    raw["results"][2]["out_of_place"].update(fields)
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edited(time=0.0), "found time 0.0 at 128 bytes"),
        (edited(time="nan"), "found time nan at 128 bytes"),
        (edited(nwrong=3.0), "found 3.0 wrong results at 128 bytes"),
        (as_json(dict(list(TIMES.items())[:3]), 8), "found 3 sizes, expected at least 4"),
        (as_json(TIMES, 8).replace('"time"', '"cpu_time"'), "found cpu_time, .* without -C 1"),
        (as_table(TIMES, 8).replace(" time ", " cputime "), "found cputime, .* without -C 1"),
        (
            as_json(TIMES, 8).replace("all_reduce_perf", "alltoall_perf"),
            "found a run of alltoall_perf",
        ),
        (as_table(TIMES, 8).replace("Rank  3 Group  0", "Rank  3 Group  1"), "several groups"),
        (as_table(TIMES, 8).replace("# ", "; "), None),
        (as_json(TIMES, 8).replace('"ngpus": 8', '"ngpus": "many"'), r"\$.config.ngpus: found 'many'"),
        (as_json(TIMES, 8)[:-40], "broken JSON"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(text: str, message: str | None) -> None:
    if message is None:
        assert read_times(text, "x") is None
        return
    with pytest.raises(InputError, match=message) as raised:
        read_times(text, "x")
    assert "\n" not in str(raised.value)


def test_a_log_of_nccl_says_what_it_has_and_what_to_run() -> None:
    log = (
        "n0:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 - Init START\n"
        "n0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "n1:7:9 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA\n"
        "n1:7:9 [1] NCCL INFO Connected all rings\n"
    )
    with pytest.raises(
        InputError, match=r"log of 4 ranks, 2 hosts, 2 channels, transport NET and P2P and no times.* -J out"
    ):
        read_times(log, "x")
