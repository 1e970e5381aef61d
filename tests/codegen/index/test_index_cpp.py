"""The header of the learned index, compiled: worked examples, random operations, memory, and its C functions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from treadle.codegen.index.header import C_FUNCTIONS, HEADER, header_text, library_texts
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration, grid

HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Werror")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="found no g++")


def compiled(folder: Path, source: Path, *options: str) -> Path:
    """A program or library of one C++ file that includes the header."""
    for name, text in library_texts().items():
        (folder / name).write_text(text)
    out = folder / f"{source.stem}.out"
    command = ["g++", "-std=c++17", *WARNINGS, *options, f"-I{folder}", str(source), "-o", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("check"), HERE / "check.cpp", "-O1")


def output(program: Path, *words: str) -> str:
    done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LOG = """\
[5] []
[5] [40]
[5 9] [40]
room 2
[5 9 20] [40]
room 4
[5 9 20 2] [40]
[5 9 2] [20 30] [40] []
[5 9 2 12] [20 30] [40] []
[5 2] [9 12 14] [20] [30] | [40] []
[5 2] [14 12] [20] [30] | [40] []
"""
"""Grow, multiply, split, delete: 4 keys for each of 4 fragments at most, 2 fragments of a new node."""

POWERS = """\
6 32 672
7 64 1344
13 4096 86016
"""
"""Fragments with keys, all fragments, their bytes without keys: for 8, 10 and 16 powers of two."""

GAPPED = """\
10 _ 20 _ 30 _ 40 _ 50 _
3 0 10 _ 20 25 30 _ 40 _ 50 _
3 1 10 _ 20 25 26 30 40 _ 50 _
3 2 10 _ 20 25 26 27 30 40 50 _
full 1
5 2
3 0
over 1
over 0
"""
"""Predicted slot, shifts and slots of each insert; then slot and doublings of two lookups; then the thresholds."""


def test_small_nodes_change_as_worked_out_by_hand(check: Path) -> None:
    assert output(check, "oracles") == LOG + POWERS + GAPPED


def test_bounds_of_the_number_of_fragments() -> None:
    """MAPLE, "Memory contribution", with d as the share of slots that are filled."""
    keys, most, filled, overhead = 1000, 50, 0.8, 21
    fewest, largest = keys / (most * filled), keys - most * filled + 1
    assert (fewest, fewest * overhead) == (25, 525)
    assert (largest, largest * overhead) == (961, 20_181)
    for count, most in ((8, 3), (10, 4), (16, 4)):  # powers of two reach the upper bound
        assert f"{count - most + 1} " in POWERS


def test_random_operations_answer_as_a_map_and_keep_every_invariant(check: Path) -> None:
    output(check, "random", "1000", "1", "0", "10")


@pytest.mark.slow
@pytest.mark.parametrize("family", range(10))
def test_a_million_random_operations_answer_as_a_map(check: Path, family: int) -> None:
    """100,000 for each of 9 settings, with and without bulk load."""
    output(check, "random", "100000", "20000", str(family), str(family + 1))


def test_bytes_are_those_that_were_allocated_and_short_memory_loses_nothing(check: Path) -> None:
    output(check, "memory")


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    program = compiled(tmp_path, HERE / "check.cpp", *SANITIZED)
    for words in (["oracles"], ["memory"], ["random", "3000", "500", "0", "10"]):
        output(program, *words)


@pytest.mark.slow
def test_avx2_and_scalar_scans_find_the_same(tmp_path: Path) -> None:
    assert output(compiled(tmp_path, HERE / "scans.cpp", "-O2")) == "same\n"


@pytest.mark.parametrize("configuration", [None, *grid()[:1], *grid()[-1:]])
def test_the_header_is_the_same_each_time_and_has_the_configuration(configuration: IndexConfiguration | None) -> None:
    text = header_text(configuration)
    assert text == header_text(configuration) == library_texts(configuration)[HEADER]
    kind = "fragmented_log" if isinstance(configuration, FragmentedLog) else "gapped_array"
    assert text.count(f"return {{Leaves::{kind}, ") == 1


def test_numbers_of_a_configuration_stand_in_the_header() -> None:
    log = header_text(FragmentedLog(fragment_keys=128, most_fragments=512, new_fragments=8))
    assert "{Leaves::fragmented_log, 4.0, 32.0, 128, 512, 8, 0.5, 0}" in log
    gapped = header_text(GappedArray(most_search=2, most_shifts=0.5))
    assert "{Leaves::gapped_array, 2.0, 0.5, 64, 64, 8, 0.5, 0}" in gapped


class Settings(ctypes.Structure):
    _fields_ = (
        ("leaves", ctypes.c_uint32), ("most_search", ctypes.c_double), ("most_shifts", ctypes.c_double),
        ("fragment_keys", ctypes.c_uint32), ("most_fragments", ctypes.c_uint32), ("new_fragments", ctypes.c_uint32),
        ("insert_share", ctypes.c_double), ("flags", ctypes.c_uint32),
    )  # fmt: skip


LOG_SETTINGS = Settings(1, 0, 0, 16, 32, 4, 0.5, 0)
KEYS = 5


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("library")
    for name, text in library_texts().items():
        (folder / name).write_text(text)
    return ctypes.CDLL(str(compiled(folder, folder / C_FUNCTIONS, "-O1", "-shared", "-fPIC")))


def function(library: ctypes.CDLL, name: str, result: type | None) -> Any:
    found = getattr(library, f"treadle_index_{name}")
    found.restype = result
    return found


def test_the_c_functions_load_change_and_run_a_trace(library: ctypes.CDLL) -> None:
    index = ctypes.c_void_p(function(library, "new", ctypes.c_void_p)(ctypes.byref(LOG_SETTINGS)))
    count, many = ctypes.c_uint64, ctypes.c_uint64 * KEYS
    size, load = function(library, "size", count), function(library, "load", ctypes.c_int)
    keys, payloads, flags = many(0, 7, 9, 2**63, 2**64 - 1), many(1, 2, 3, 4, 5), (ctypes.c_uint8 * KEYS)()
    assert load(index, many(3, 2, 1, 0, 9), payloads, count(KEYS)) == 1
    assert load(index, keys, payloads, count(KEYS)) == 0
    assert load(index, keys, payloads, count(KEYS)) == 2
    found = many()
    assert function(library, "lookup", count)(index, keys, count(KEYS), found, flags) == size(index) == KEYS
    assert list(found) == [1, 2, 3, 4, 5]
    assert function(library, "insert", count)(index, many(7, 8, 9, 10, 11), payloads, count(KEYS), flags) == 3
    assert list(flags) == [0, 1, 0, 1, 1]
    assert function(library, "erase", count)(index, many(7, 12, 9, 13, 0), count(KEYS), flags) == 3
    assert list(flags) == [1, 0, 1, 0, 1]
    some = function(library, "scan", count)(index, count(1), count(KEYS), found, many())
    assert list(found[:some]) == [8, 10, 11, 2**63, 2**64 - 1]
    ops, windows, answers = (ctypes.c_uint8 * KEYS)(0, 1, 2, 3, 0), many(), count()
    trace = (index, ops, many(8, 20, 10, 0, 1), many(0, 6, 0, 3, 0), count(KEYS), ctypes.c_uint32(2))
    assert function(library, "run", ctypes.c_int)(*trace, windows, ctypes.byref(answers)) == 0
    assert size(index) == KEYS
    assert function(library, "broken", ctypes.c_char_p)(index) is None
    all_counts = (count * 12)()
    function(library, "counts", None)(index, all_counts)
    assert all_counts[1] >= 1
    assert function(library, "bytes", count)(index) > 21 * all_counts[2]
    function(library, "free", None)(index)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(2, 1, 1, 16, 32, 4, 0.5, 0),
        Settings(1, 0, 0, 3, 32, 4, 0.5, 0),
        Settings(1, 0, 0, 16, 2, 4, 0.5, 0),
        Settings(1, 0, 0, 16, 1 << 30, 4, 0.5, 0),
        Settings(0, float("nan"), 1, 0, 0, 0, 0.5, 0),
        Settings(0, 1, 1, 0, 0, 0, 1.5, 0),
    ],
)
def test_settings_out_of_range_make_no_index(library: ctypes.CDLL, settings: Settings) -> None:
    assert function(library, "new", ctypes.c_void_p)(ctypes.byref(settings)) is None
