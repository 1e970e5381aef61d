"""nccl-tests output: table and JSON say the same, and what cannot be fitted is refused in one line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.treadle.probe.nccl_files import SIZES, as_json, as_table
from treadle.planner.errors import InputError
from treadle.probe.nccl_tests import CollectiveTimes, NcclTimes, read_times

TIMES = {size: 20 + size / 1e4 for size in SIZES}


def test_table_and_json_of_one_run_give_the_same_times() -> None:
    expected = NcclTimes((CollectiveTimes("allreduce", 16, 2, TIMES),))
    assert read_times(as_json(TIMES, 16, 2), "x") == expected
    assert read_times(as_table(TIMES, 16, 2), "x") == expected


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_collective_is_that_of_the_test(collective: str) -> None:
    for text in (as_json(TIMES, 8, 1, collective), as_table(TIMES, 8, 1, collective)):
        found = read_times(text, "x")
        assert found is not None
        assert [run.collective for run in found.runs] == [collective]


@pytest.mark.parametrize("prefix", ["[1,{}]<stdout>:", "[prterun-node0-77@1,{}]<stdout>: ", "{}: ", " {}: ", "[{}] "])
def test_a_table_among_lines_of_launchers_and_of_nccl(prefix: str) -> None:
    table = as_table(TIMES, 8)
    mixed = [
        f"{prefix.format(0)}{line}\n{prefix.format(3)}node0:7:8 [3] NCCL INFO Connected all rings"
        for line in table.split("\n")
    ]
    assert read_times("\n".join(mixed), "x") == read_times(table, "x")


def test_runs_one_after_the_other_are_apart_and_repeats_give_their_median() -> None:
    slower = {size: 3 * time for size, time in TIMES.items()}
    slowest = {size: 9 * time for size, time in TIMES.items()}
    runs = [as_table(TIMES, 8), as_table(slower, 8, 1, "allgather"), as_table(slowest, 8), as_table(slower, 8)]
    other = as_table(TIMES, 8).replace("all_reduce_perf", "alltoall_perf")
    assert read_times("\n".join([other, *runs]), "x") == NcclTimes(
        (CollectiveTimes("allreduce", 8, 1, slower), CollectiveTimes("allgather", 8, 1, slower)), ("alltoall_perf",)
    )


def test_a_name_may_stand_in_the_footer_or_have_the_ending_of_mpi_builds() -> None:
    expected = NcclTimes((CollectiveTimes("allgather", 8, 1, TIMES),))
    table = as_table(TIMES, 8, 1, "allgather")
    first, rest = table.split("\n", 1)
    assert read_times(f"{rest}# Collective test concluded: all_gather_perf\n", "x") == expected
    assert read_times(f"{first}_mpi\n{rest}", "x") == expected
    assert read_times(as_json(TIMES, 8, 1, "allgather").replace("gather_perf", "gather_perf_mpi"), "x") == expected


def test_columns_that_are_left_out_do_not_shift_the_times() -> None:
    table = as_table(TIMES, 8)
    assert read_times(table.replace("   sum  ", "        "), "x") == read_times(table, "x")
    in_place = "\n".join(
        re.sub(r"(-1 .*?) [0-9.e-]+  1.00  1.75  0", r"\1", line, count=1) for line in table.split("\n")
    )
    found = read_times(in_place, "x")
    assert found is not None
    assert found.runs[0].times == {size: 1.5 * time for size, time in TIMES.items()}


def test_columns_of_single_iterations_and_of_the_clock_are_passed_over() -> None:
    table = as_table(TIMES, 8)
    wider = table.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%").replace(
        "1.75  0", "1.75  N/A  1.0  2.0  1.9  0.3"
    )
    lines = [
        line + " timestamp" if "count" in line else line + "  2026-01-02 03:04:05" if "float" in line else line
        for line in wider.split("\n")
    ]
    assert read_times("\n".join(lines), "x") == read_times(table, "x")


def test_an_older_table_without_redop_root_and_name_in_a_file_that_has_it() -> None:
    rows = "\n".join(
        f" {size} {size // 4} float  {time} 1.0 1.7 4e-07  {time} 1.0 1.7 N/A" for size, time in TIMES.items()
    )
    text = (
        "#   Rank  0 Pid  7 on  node0 device  0 [0x07] A100\n#   Rank  1 Pid  8 on  node0 device  1 [0x0b] A100\n"
        "#  size  count  type   redop   time   algbw   busbw  error   time   algbw   busbw  error\n" + rows
    )
    expected = NcclTimes((CollectiveTimes("allgather", 2, 1, TIMES),))
    assert read_times(text, "logs/v100_all_gather_perf.txt") == expected
    assert read_times("$ mpirun -np 2 build/all_gather_perf -b 8\n" + text, "x") == expected
    with pytest.raises(InputError, match="found no name of a test in the file or its name"):
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
        (as_json(dict(list(TIMES.items())[:3]), 8), "found 3 sizes of allreduce, expected at least 4"),
        (as_json(TIMES, 8).replace('"time"', '"cpu_time"'), "found cpu_time, .* without -C 1"),
        (as_table(TIMES, 8).replace(" time ", " cputime "), "found cputime, .* without -C 1"),
        (
            as_json(TIMES, 8).replace("all_reduce_perf", "alltoall_perf"),
            "found a run of alltoall_perf",
        ),
        (as_table(TIMES, 8).replace("Rank  3 Group  0", "Rank  3 Group  1"), "several groups"),
        (as_table(TIMES, 8).replace("Rank  3", "Rank  0"), "found rank 0 2 times, .* built with MPI=1"),
        (as_table(TIMES, 8).replace("#  Rank", "# rank"), "found no lines `# Rank"),
        (as_json(TIMES, 8).replace('"results"', '"nothing"'), r"\$.results: found no results, .* a run that ended"),
        (as_json(TIMES, 8).replace('"config"', '"nothing"'), r"\$.config: found no config, .* a run that ended"),
        (as_table(TIMES, 8).replace("# ", "; "), None),
        (as_json(TIMES, 8).replace('"ngpus": 8', '"ngpus": "many"'), r"\$.config.ngpus: found 'many'"),
        (as_json(TIMES, 8)[:-40], "broken JSON"),
        (
            "# all_reduce_perf\n#  size count type time algbw busbw #wrong\n8 2 float\n",
            "the row '8 2 float' without a time",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(text: str, message: str | None) -> None:
    if message is None:
        assert read_times(text, "x") is None
        return
    with pytest.raises(InputError, match=message) as raised:
        read_times(text, "x")
    assert "\n" not in str(raised.value)
