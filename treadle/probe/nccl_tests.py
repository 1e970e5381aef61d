"""What nccl-tests wrote: the JSON of `-J` or the tables it prints, also among the lines of mpirun, srun and NCCL."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import PurePath
from statistics import median
from typing import Any, Literal, NamedTuple

from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError

Collective = Literal["allreduce", "allgather", "reducescatter"]
TESTS: dict[str, Collective] = {
    "all_reduce_perf": "allreduce",
    "all_gather_perf": "allgather",
    "reduce_scatter_perf": "reducescatter",
}
LEAST_SIZES = 4
PREFIX = re.compile(r"^\s*(?:\[[^\[\]\s]*\d+,\d+\]<std(?:out|err)>:|\[\d+\](?= )|\d+:(?= ))\s?")
"""What mpirun --tag-output, other launchers and srun -l put before a line."""
_EXPECTED_TEST = f"one of {', '.join(TESTS)}, whose rings the fit knows"
_RANK = re.compile(r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device")
_HEADER = re.compile(r"#\s+size\s+count\s+type\s.*\b(?:time|cputime)\b")
_SET = re.compile(r"\bNCCL_(ALGO|PROTO)(?:=| set by environment to )[\"']?([\w^,;:]+)")
_TOOK = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel")
_TEST = re.compile(r"\b([a-z]\w*?_perf)(?:_mpi)?\b")


class RunSetting(NamedTuple):
    """`NCCL_ALGO` and `NCCL_PROTO` of a run, as they are written; empty where they are not set."""

    algorithms: str = ""
    protocols: str = ""


UNSET = RunSetting()


@dataclass(frozen=True)
class CollectiveTimes:
    """`times` are us by size in bytes as nccl-tests counts it: the larger buffer of a rank."""

    collective: Collective
    ranks: int
    hosts: int
    times: dict[int, float]
    setting: RunSetting = UNSET
    took: dict[int, RunSetting] = field(default_factory=dict)
    """By size what NCCL ran, as far as its TUNING lines say so."""


@dataclass(frozen=True)
class NcclTimes:
    """The runs of one file, one for each collective and setting; `others` are tests that the fit does not know."""

    runs: tuple[CollectiveTimes, ...]
    others: tuple[str, ...] = ()

    @property
    def fastest(self) -> tuple[CollectiveTimes, ...]:
        """One for each collective: the least time of each size, whatever the setting."""
        found: dict[tuple[Collective, int, int], dict[int, float]] = defaultdict(dict)
        for run in self.runs:
            times = found[run.collective, run.ranks, run.hosts]
            times |= {size: min(time, times.get(size, time)) for size, time in run.times.items()}
        return tuple(CollectiveTimes(*key, dict(sorted(times.items()))) for key, times in found.items())


@dataclass(frozen=True)
class _Row:
    size: int
    time: object
    wrong: tuple[object, ...]


@dataclass
class _Run:
    """One run of a test; `ranks` are (rank, group, host)."""

    test: str = ""
    ranks: list[tuple[str, str, str]] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    setting: RunSetting = UNSET
    took: list[tuple[str, int, RunSetting]] = field(default_factory=list)
    """(function, bytes of its count, what ran) of the TUNING lines."""


def read_times(text: str, where: str) -> NcclTimes | None:
    """The times of a file of nccl-tests, out of place where there are both; None for a file of something else.

    Several runs of one collective and setting count as one, with the median of each size. Raises InputError for wrong
    results, times that are not positive, fewer than four sizes, several groups, and when no run is of a test whose
    rings are known.
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        raw = parse(text, where) if '"nccl_version"' in text else None
        return _of_json(raw, where) if isinstance(raw, Mapping) and "nccl_version" in raw else None
    lines = [PREFIX.sub("", line).strip() for line in text.splitlines()]
    runs = list(_runs(lines, where))
    if not runs:
        return None
    if len(runs) == 1 and not runs[0].test:
        runs[0].test = next((test for test in TESTS if test in PurePath(where).name), "")
    known = [run for run in runs if run.test in TESTS]
    if not known:
        raise _unknown_test(runs[0].test, where)
    found: dict[tuple[Collective, int, int, RunSetting], list[_Row]] = defaultdict(list)
    took: dict[tuple[Collective, int, int, RunSetting], dict[int, RunSetting]] = defaultdict(dict)
    for run in known:
        if not run.ranks:
            raise InputError("found no lines `# Rank ... on HOST device`, expected one for each rank", where=where)
        again, count = Counter(rank for rank, _, _ in run.ranks).most_common(1)[0]
        if count > 1:
            raise InputError(
                f"found rank {again} {count} times, expected each once: for mpirun nccl-tests is built with MPI=1",
                where=where,
            )
        _require_one_group((group for _, group, _ in run.ranks), where)
        key = (TESTS[run.test], len(run.ranks), len({host for _, _, host in run.ranks}), run.setting)
        found[key] += run.rows
        parts = 1 if key[0] == "allreduce" else len(run.ranks)
        took[key] |= {count * parts: what for function, count, what in run.took if function.lower() == key[0]}
    others = dict.fromkeys(run.test or "a test without a name" for run in runs if run.test not in TESTS)
    return NcclTimes(tuple(_checked(*key, rows, where, took[key]) for key, rows in found.items()), tuple(others))


def _of_json(raw: Mapping[str, Any], where: str) -> NcclTimes:
    config, results, args = raw.get("config"), raw.get("results"), raw.get("args")
    if not isinstance(config, Mapping) or not isinstance(results, list):
        path = "$.results" if isinstance(config, Mapping) else "$.config"
        raise InputError(f"found no {path[2:]}, expected the file of a run that ended", where=where, path=path)
    devices = config.get("devices")
    if not isinstance(devices, list) or not devices or not all(isinstance(each, Mapping) for each in devices):
        raise InputError("found no devices, expected a list", where=where, path="$.config.devices")
    named = _TEST.fullmatch(PurePath(str(args[0])).name) if isinstance(args, list) and args else None
    if named is None or named[1] not in TESTS:
        raise _unknown_test(named[1] if named else "", where)
    # The file lists the first device of each process only.
    ranks = len(devices) * _whole(config, "nthreads", where) * _whole(config, "ngpus", where)
    _require_one_group((str(each.get("group", 0)) for each in devices), where)
    rows = [_json_row(each, f"$.results[{index}]", where) for index, each in enumerate(results)]
    hosts = {str(each.get("hostname")) for each in devices}
    return NcclTimes((_checked(TESTS[named[1]], ranks, len(hosts), UNSET, rows, where, {}),))


def _whole(config: Mapping[str, Any], field: str, where: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"found {value!r}, expected a whole number from 1 on", where=where, path=f"$.config.{field}")
    return value


def _json_row(raw: Any, path: str, where: str) -> _Row:
    size = raw.get("size") if isinstance(raw, Mapping) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InputError(f"found {size!r}, expected bytes", where=where, path=f"{path}.size")
    places = [each for key in ("out_of_place", "in_place") if isinstance(each := raw.get(key), Mapping)]
    if not places:
        raise InputError("found neither out_of_place nor in_place, expected one", where=where, path=path)
    if "time" not in places[0]:
        raise _no_time("cpu_time" if "cpu_time" in places[0] else "no time", where, path)
    return _Row(size, places[0]["time"], tuple(each.get("nwrong") for each in places))


def _runs(lines: list[str], where: str) -> Iterator[_Run]:
    """The runs of a text. Ranks stand before the header of a table, the name of its test before it or in its footer.
    A setting holds for the next table, TUNING lines belong to the one that they follow."""
    run, name, setting = _Run(), "", UNSET
    for line in lines:
        for given in _SET.finditer(line):
            setting = setting._replace(**{"algorithms" if given[1] == "ALGO" else "protocols": given[2]})
        if found := _TOOK.search(line):
            run.took.append((found[1], int(found[2]), RunSetting(found[3], found[4])))
        words = line.split()
        named = _TEST.search(line)
        if named and run.header and "concluded" in line:
            run.test = run.test or named[1]
        elif named:
            name = named[1]
        if rank := _RANK.match(line):
            if run.header:
                yield run
                run = _Run()
            run.ranks.append((rank[1], rank[2] or "0", rank[3]))
        elif _HEADER.match(line):
            run.header, run.test, name = words[1:] + ([""] if words[-1] == "timestamp" else []), name or run.test, ""
            run.setting, setting = setting, UNSET
            if "time" not in run.header:
                raise _no_time("cputime", where, None)
        elif run.header and words and words[0].isdecimal() and len(words) >= len(run.header) // 2:
            run.rows.append(_table_row(words, run.header, where))
    if run.header:
        yield run


def _table_row(words: list[str], header: list[str], where: str) -> _Row:
    """Columns count from the end: an operation without `redop` leaves that one empty."""
    first, *others = (index - len(header) for index, name in enumerate(header) if name == "time")
    again = others[0] if others else first
    only_in_place = again > first and len(words) <= len(header) - (again - first)
    wrong = [index - len(header) for index, name in enumerate(header) if name == "#wrong"]
    place = again if only_in_place else first
    if len(words) < -place:
        raise InputError(f"found the row {' '.join(words)!r} without a time, expected all columns", where=where)
    return _Row(int(words[0]), words[place], tuple(words[at] for at in wrong if not only_in_place or at >= again))


def _unknown_test(test: str, where: str) -> InputError:
    if test:
        return InputError(f"found a run of {test}, expected {_EXPECTED_TEST}", where=where)
    return InputError(f"found no name of a test in the file or its name, expected {_EXPECTED_TEST}", where=where)


def _require_one_group(groups: Iterable[str], where: str) -> None:
    if len(set(groups)) > 1:
        raise InputError("found ranks in several groups, expected all in one (no NCCL_TESTS_SPLIT)", where=where)


def _checked(
    collective: Collective,
    ranks: int,
    hosts: int,
    setting: RunSetting,
    rows: list[_Row],
    where: str,
    took: dict[int, RunSetting],
) -> CollectiveTimes:
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        wrong = [each for each in row.wrong if each not in (None, "N/A") and _number(each) != 0]
        if wrong:
            raise InputError(f"found {wrong[0]} wrong results at {row.size} bytes, expected none", where=where)
        time = _number(row.time)
        if time is None or time <= 0:
            raise InputError(f"found time {row.time} at {row.size} bytes, expected microseconds above 0", where=where)
        if row.size:
            found[row.size].append(time)
    if len(found) < LEAST_SIZES:
        raise InputError(
            f"found {many(len(found), 'size')} of {collective}, expected at least {LEAST_SIZES}, such as those of "
            "-b 8 -e 1G -f 2",
            where=where,
        )
    times = {size: median(found[size]) for size in sorted(found)}
    return CollectiveTimes(collective, ranks, hosts, times, setting, took)


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def _no_time(found: str, where: str, path: str | None) -> InputError:
    return InputError(f"found {found}, expected the time of the device: run without -C 1", where=where, path=path or "")
