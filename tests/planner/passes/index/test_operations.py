"""Files of keys and operations: what is written is read, and bad files are refused in one line."""

from __future__ import annotations

import io
import logging
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.index.operations import (
    LAYOUT,
    Operations,
    Workload,
    digest_of_file,
    payloads_of,
    read_keys,
    read_operations,
    write_keys,
    write_operations,
)

KEYS = np.array([0, 3, 1 << 40, (1 << 64) - 1], np.uint64)
TRACE = Operations(
    np.array([1, 0, 2, 3, 1], np.uint8),
    np.array([5, 3, (1 << 64) - 1, 0, 6], np.uint64),
    np.array([(1 << 64) - 1, 0, 0, 10, 7], np.uint64),
)


def npy(array: object, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["keys.bin", "keys.npy", "books_200M_uint64"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_keys_are_read_as_written(tmp_path: Path, name: str, count: int) -> None:
    write_keys(tmp_path / name, KEYS[:count])
    found = read_keys(tmp_path / name)
    assert found.dtype == np.uint64
    assert found.tolist() == KEYS[:count].tolist()


def test_the_format_of_sosd_is_a_count_and_the_keys(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", np.array([1, 256], np.uint64))
    assert (tmp_path / "keys").read_bytes().hex() == "0200000000000000" + "0100000000000000" + "0001000000000000"


def test_keys_in_another_order_are_sorted_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "keys.npy", KEYS[::-1].astype(">u8"))
    with caplog.at_level(logging.WARNING, "treadle"):
        assert read_keys(tmp_path / "keys.npy").tolist() == KEYS.tolist()
    assert "sorted its 4 keys" in caplog.text


BAD_KEYS = {
    "short.bin": (b"\2\0\0", "found 3 bytes, expected a count of 8 bytes"),
    "empty.bin": (b"", "found 0 bytes"),
    "cut.bin": ((3).to_bytes(8, "little") + b"\1" * 20, "found 20 bytes after a count of 3 keys, expected 24 bytes"),
    "more.bin": ((1).to_bytes(8, "little") + b"\1" * 16, "found 16 bytes after a count of 1 keys, expected 8"),
    "vast.bin": (b"\xff" * 16, "after a count of 18446744073709551615 keys"),
    "twice.npy": (npy(np.array([5, 9, 5], np.uint64)), "found key 5 twice"),
    "signed.npy": (npy(np.array([1, 2])), "found int64 of shape (2,), expected unsigned 64-bit integers"),
    "floats.npy": (npy(np.array([1.0])), "found float64"),
    "table.npy": (npy(np.zeros((2, 2), np.uint64)), "in one dimension"),
    "scalar.npy": (npy(np.uint64(3)), "in one dimension"),
    "pickled.npy": (npy(np.array([{}]), allow_pickle=True), "cannot read as .npy"),
    "text.npy": (b"lookup 5\n", "cannot read as .npy"),
    "nothing.npy": (b"", "cannot read as .npy"),
    "header.npy": (b"\x93NUMPY\x01\x00\x10\x00{'descr': 1 + 1}\n", "cannot read as .npy"),
    "open.npy": (b"\x93NUMPY\x01\x00\x50\x00" + b"(" * 79 + b"\n", "cannot read as .npy"),
    "nested.npy": (b"\x93NUMPY\x01\x00\x10\x27" + b"-" * 9999 + b"\n", "cannot read as .npy"),
    "cut.npy": (npy(KEYS)[:-1], "cannot read as .npy"),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_bad_files_of_keys_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    data, message = BAD_KEYS[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as refused:
        read_keys(tmp_path / name)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("read", [read_keys, read_operations])
@pytest.mark.parametrize("name", ["missing", "missing.npy", ".", "nul\0", "/dev/zero"])
def test_what_is_no_file_is_refused(tmp_path: Path, read: object, name: str) -> None:
    assert callable(read)
    with pytest.raises(InputError, match=r"cannot read|found a folder or device"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["trace.txt", "trace.npy"])
@pytest.mark.parametrize("first", [None, 2, 9])
def test_operations_are_read_as_written(tmp_path: Path, name: str, first: int | None) -> None:
    write_operations(tmp_path / name, TRACE)
    found = read_operations(tmp_path / name, first)
    assert [each.tolist() for each in found] == [each[:first].tolist() for each in TRACE]
    assert [each.dtype for each in found] == [np.uint8, np.uint64, np.uint64]


def test_a_text_may_have_comments_and_leave_out_the_payload(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("# a trace\n\ninsert 5\r\n  lookup\t7 # there\nscan 0 3")
    found = read_operations(tmp_path / "trace")
    assert [each.tolist() for each in found] == [[1, 0, 3], [5, 7, 0], [0, 0, 3]]


def test_only_the_operations_that_are_asked_for_are_read(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("insert 5\nlookup 5\nnonsense\n")
    assert len(read_operations(tmp_path / "trace", 2).ops) == 2
    rows = np.zeros(3, LAYOUT)
    rows["op"] = 0, 1, 9
    np.save(tmp_path / "trace.npy", rows)
    assert len(read_operations(tmp_path / "trace.npy", 2).ops) == 2
    with pytest.raises(InputError, match="found op 9 of operation 2, expected 0 lookup"):
        read_operations(tmp_path / "trace.npy")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "insert",
            "insert x",
            "insert 1 2 3",
            "lookup 1 2",
            "delete",
            "scan 5",
            "update 3",
            "insert -1",
            "insert 1.5",
        ),
        *(
            "INSERT 5",
            "insert 1_000",
            "insert 0x10",
            "insert ٣",
            "lookup 18446744073709551616",
            "insert 1 " + "9" * 500,
        ),
        *("lookup \0", "x" * 5000, "__import__('os').abort()"),
    ],
)
def test_a_line_that_is_no_operation_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "trace").write_text(f"lookup 1\n# fine\n{line}\nlookup 2\n")
    with pytest.raises(InputError, match=r"trace: line 3: found ") as refused:
        read_operations(tmp_path / "trace")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_files_without_operations_or_with_other_fields_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("# nothing\n")
    np.save(tmp_path / "keys.npy", KEYS)
    np.save(tmp_path / "none.npy", np.zeros(0, LAYOUT))
    for name, message in (
        ("trace", "found no operation"),
        ("none.npy", "found no operation"),
        ("keys.npy", "found uint64 of shape (4,), expected fields op (u1), key (u8), payload (u8)"),
    ):
        with pytest.raises(InputError) as refused:
            read_operations(tmp_path / name)
        assert message in str(refused.value)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9))), st.sets(st.integers(0, 9)))
def test_keys_at_the_end_are_those_of_a_set(steps: list[tuple[int, int]], loaded: set[int]) -> None:
    keys = np.array(sorted(loaded), np.uint64)
    columns = np.array(steps, np.uint64).reshape(-1, 2)
    operations = Operations(columns[:, 0].astype(np.uint8), columns[:, 1], columns[:, 1])
    workload = Workload(keys, payloads_of(keys), operations)
    there = set(loaded)
    for op, key in steps:
        if op == 1:
            there.add(key)
        elif op == 2:
            there.discard(key)
    assert workload.keys_at_end() == len(there)
    assert sum(workload.counts()) == len(steps)
    assert workload.first(3).counts() == operations.first(3).counts()


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"abc")
    assert digest_of_file(tmp_path / "keys") == f"sha256:{sha256(b'abc').hexdigest()}"
    with pytest.raises(InputError, match="cannot read"):
        digest_of_file(tmp_path / "missing")
