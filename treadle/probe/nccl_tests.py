"""What nccl-tests wrote: the JSON of `-J` or the table it prints, and what an NCCL_DEBUG=INFO log says instead."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import PurePath
from statistics import median
from typing import Any, Literal

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
_EXPECTED_TEST = f"one of {', '.join(TESTS)}, whose rings the fit knows"
_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")
_RANK = re.compile(r"#\s+Rank\s+\d+(?:\s+Group\s+(\d+))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device")
_HEADER = re.compile(r"#\s+size\s+count\s+type\s.*\b(?:time|cputime)\b")
_TEST = re.compile(r"\b(\w+_perf)\b")
_LOG = "NCCL INFO"
_CHANNEL = re.compile(r"NCCL INFO Channel (\d+)(?:/\d+)? : (\d+)\S* -> (\d+)\S* .*?(?:via )(P2P|NET|SHM|COLLNET)")
_HOST = re.compile(r"^(\S+?):\d+:\d+ \[\d+\] NCCL INFO", re.MULTILINE)
_RANKS = re.compile(r"NCCL INFO .*\bnranks (\d+)")


@dataclass(frozen=True)
class CollectiveTimes:
    """`times` are us by size in bytes as nccl-tests counts it: the larger buffer of a rank."""

    collective: Collective
    ranks: int
    hosts: int
    times: dict[int, float]


@dataclass(frozen=True)
class _Row:
    size: int
    time: object
    wrong: tuple[object, ...]


def read_times(text: str, where: str) -> CollectiveTimes | None:
    """The times of a file of nccl-tests, out of place where there are both; None for a file of something else.

    Raises InputError for wrong results, times that are not positive, fewer than four sizes, several groups, another
    test than those whose rings are known, and an NCCL log without a table.
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        if '"nccl_version"' not in text or '"config"' not in text:
            return None
        return _of_json(parse(text, where), where)
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    if any(_HEADER.match(line) for line in lines):
        return _of_table(lines, where)
    if _LOG in text:
        raise InputError(
            f"found an NCCL log of {_summary(text)} and no times, expected the output of nccl-tests; run "
            "`all_reduce_perf -b 8 -e 1G -f 2 -J out.json` and import out.json",
            where=where,
        )
    return None


def _of_json(raw: Any, where: str) -> CollectiveTimes | None:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("config"), Mapping):
        return None
    config, results = raw["config"], raw.get("results")
    devices = config.get("devices")
    if not isinstance(devices, list) or not devices or not all(isinstance(each, Mapping) for each in devices):
        raise InputError("found no devices, expected a list", where=where, path="$.config.devices")
    if not isinstance(results, list):
        raise InputError("found no results, expected those of a run that ended", where=where, path="$.results")
    # The file lists the first device of each process only.
    ranks = len(devices) * _whole(config, "nthreads", where) * _whole(config, "ngpus", where)
    rows = [_json_row(each, f"$.results[{index}]", where) for index, each in enumerate(results)]
    args = raw.get("args")
    test = PurePath(str(args[0])).name if isinstance(args, list) and args else ""
    hosts = {str(each.get("hostname")) for each in devices}
    return _checked(test, ranks, len(hosts), {str(each.get("group", 0)) for each in devices}, rows, where)


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


def _of_table(lines: list[str], where: str) -> CollectiveTimes:
    header: list[str] = []
    rows = []
    for line in lines:
        words = line.split()
        if _HEADER.match(line):
            header = words[1:] + ([""] if words[-1] == "timestamp" else [])
            if "time" not in header:
                raise _no_time("cputime", where, None)
        elif header and words and words[0].isdecimal() and len(words) >= len(header) // 2:
            rows.append(_table_row(words, header))
    devices = [match for line in lines if (match := _RANK.match(line))]
    if not devices:
        raise InputError("found no lines `# Rank ... on HOST device`, expected one for each rank", where=where)
    named = (match for line in lines if line.startswith("# Collective test") and (match := _TEST.search(line)))
    test = next(named, None) or _TEST.search(where) or next((m for line in lines if (m := _TEST.search(line))), None)
    hosts, groups = {match[2] for match in devices}, {match[1] or "0" for match in devices}
    return _checked(test[1] if test else "", len(devices), len(hosts), groups, rows, where)


def _table_row(words: list[str], header: list[str]) -> _Row:
    """Columns count from the end: an operation without `redop` leaves that one empty."""
    first = header.index("time") - len(header)
    again = header.index("time", len(header) + first + 1) - len(header) if header.count("time") > 1 else first
    only_in_place = len(words) < 4 - first
    wrong = [index - len(header) for index, name in enumerate(header) if name == "#wrong"]
    time = words[again if only_in_place else first]
    return _Row(int(words[0]), time, tuple(words[at] for at in wrong if not only_in_place or at >= again))


def _checked(test: str, ranks: int, hosts: int, groups: Iterable[str], rows: list[_Row], where: str) -> CollectiveTimes:
    if test not in TESTS:
        raise InputError(
            f"found {f'a run of {test}' if test else 'no name of a test'}, expected {_EXPECTED_TEST}", where=where
        )
    if len(set(groups)) > 1:
        raise InputError("found ranks in several groups, expected all in one (no NCCL_TESTS_SPLIT)", where=where)
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
            f"found {many(len(found), 'size')}, expected at least {LEAST_SIZES}, such as those of -b 8 -e 1G -f 2",
            where=where,
        )
    return CollectiveTimes(TESTS[test], ranks, hosts, {size: median(found[size]) for size in sorted(found)})


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def _no_time(found: str, where: str, path: str | None) -> InputError:
    return InputError(f"found {found}, expected the time of the device: run without -C 1", where=where, path=path or "")


def _summary(text: str) -> str:
    """Ranks, hosts, channels and transports of an NCCL log, as far as it has them."""
    channels = [match.groups() for match in _CHANNEL.finditer(text)]
    ends = {int(end) for _, src, dst, _ in channels for end in (src, dst)}
    ranks = max([int(count) for count in _RANKS.findall(text)] + [1 + max(ends, default=-1)])
    parts = [many(ranks, "rank")] if ranks else []
    parts += [many(len(hosts), "host")] if (hosts := set(_HOST.findall(text))) else []
    if channels:
        parts += [many(len({number for number, *_ in channels}), "channel")]
        parts += [f"transport {' and '.join(sorted({via for *_, via in channels}))}"]
    return ", ".join(parts) or "an unknown number of ranks"
