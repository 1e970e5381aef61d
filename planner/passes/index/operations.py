"""Keys and operations of an index as arrays, and the files that hold them.

Keys: the binary format of SOSD (a count and as many keys, 64 bits each, least byte first), or `.npy`. Operations: a
structured `.npy` array, or a text with one operation a line. Files are memory-mapped; of operations only those asked
for are read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.explain import short
from treadle.planner.documents.files import write_bytes
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError

LOOKUP, INSERT, DELETE, SCAN = range(4)
WORDS = ("lookup", "insert", "delete", "scan")
COUNTS = {b"lookup": (LOOKUP, (1,)), b"insert": (INSERT, (1, 2)), b"delete": (DELETE, (1,)), b"scan": (SCAN, (2,))}
"""The numbers that may follow a word of a text."""
LAYOUT = np.dtype([("op", "u1"), ("key", "<u8"), ("payload", "<u8")])
"""One operation in a `.npy` file."""
NOT_NPY = (
    OSError,
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    OverflowError,
    TokenError,
    MemoryError,
    RecursionError,
)
"""What numpy raises for a `.npy` file that is none, PARSING among it as the header is a literal of Python."""
MOST_LINE = 1 << 12
"""Bytes of the longest line of a text that may hold an operation."""

Keys = NDArray[np.uint64]
log = logging.getLogger("treadle")


class OperationCounts(NamedTuple):
    lookups: int
    inserts: int
    deletes: int
    scans: int


class Operations(NamedTuple):
    """Arrays of one length. `ops`: 0 lookup, 1 insert, 2 delete, 3 scan; the payload of a scan is how many keys it
    reads."""

    ops: NDArray[np.uint8]
    keys: Keys
    payloads: Keys

    def first(self, count: int) -> Operations:
        """The first `count`, without a copy; all where there are fewer."""
        return Operations(self.ops[:count], self.keys[:count], self.payloads[:count])

    def counts(self) -> OperationCounts:
        return OperationCounts(*np.bincount(self.ops, minlength=len(WORDS)).tolist())


class Workload(NamedTuple):
    """Keys that are loaded first, ascending and different, with their payloads, and the operations on them."""

    keys: Keys
    payloads: Keys
    operations: Operations

    def first(self, count: int) -> Workload:
        """All keys, and the first `count` operations."""
        return self._replace(operations=self.operations.first(count))

    def counts(self) -> OperationCounts:
        return self.operations.counts()

    def keys_at_end(self) -> int:
        """How many keys there are after all operations."""
        changes = (self.operations.ops == INSERT) | (self.operations.ops == DELETE)
        backwards = self.operations.keys[changes][::-1]
        touched, last = np.unique(backwards, return_index=True)
        there = self.operations.ops[changes][::-1][last] == INSERT
        if not len(self.keys):
            return int(there.sum())
        places = np.searchsorted(self.keys, touched)
        loaded = self.keys[np.minimum(places, len(self.keys) - 1)] == touched
        return len(self.keys) + int((there & ~loaded).sum()) - int((~there & loaded).sum())


def payloads_of(keys: Keys) -> Keys:
    """A payload for each key that no other key has, so that a wrong answer shows."""
    return keys * np.uint64(0x9E3779B97F4A7C15)


# Keys


def read_keys(path: Path | str) -> Keys:
    """The keys of a file, ascending, memory-mapped where they are in that order already; otherwise a line of the log
    says that they were sorted.

    Raises InputError for a file that cannot be read or is cut short, for other types than unsigned 64-bit integers, and
    for a key that occurs twice.
    """
    where = str(path)
    keys: Keys = _array(where, np.dtype("<u8")) if where.endswith(".npy") else _sosd(where)
    keys = keys.astype(np.uint64, copy=False)
    if not _ascending(keys, strictly=False):
        log.warning("%s: sorted its %s, which were in another order", where, many(len(keys), "key"))
        keys = np.sort(keys)
    if not _ascending(keys, strictly=True):
        twice = int(keys[:-1][keys[1:] == keys[:-1]][0])
        raise InputError(f"found key {twice} twice, expected keys that occur once", where=where)
    return keys


def write_keys(path: Path | str, keys: Keys) -> None:
    """Write keys as `.npy` where the name ends so, else in the format of SOSD."""
    whole = np.ascontiguousarray(keys, dtype="<u8")
    write_bytes(path, _npy(whole) if str(path).endswith(".npy") else len(whole).to_bytes(8, "little") + whole.tobytes())


def _sosd(where: str) -> Keys:
    size = _size(where)
    if size < 8:
        raise InputError(f"found {many(size, 'byte')}, expected a count of 8 bytes and the keys", where=where)
    try:
        with open(where, "rb") as stream:
            count = int.from_bytes(stream.read(8), "little")
        if size != 8 + 8 * count:
            found = many(size - 8, "byte")
            raise InputError(f"found {found} after a count of {count} keys, expected {8 * count} bytes", where=where)
        return np.memmap(where, dtype="<u8", mode="r", offset=8) if count else np.empty(0, np.uint64)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error


def _ascending(keys: Keys, *, strictly: bool) -> bool:
    compared = np.less if strictly else np.less_equal
    step = 1 << 22  # not one boolean for every key of a big file at once
    parts = (keys[start : start + step + 1] for start in range(0, len(keys) - 1, step))
    return all(bool(compared(part[:-1], part[1:]).all()) for part in parts)


# Operations


def read_operations(path: Path | str, first: int | None = None) -> Operations:
    """The operations of a file, or its first ones.

    A `.npy` file has fields `op`, `key` and `payload` (LAYOUT). A text has lines `insert KEY [PAYLOAD]`, `lookup KEY`,
    `delete KEY` and `scan KEY COUNT`; what follows `#` is a comment. Raises InputError that names the first line or
    operation that is none, and for a file without operations.
    """
    where = str(path)
    found = _stored_operations(where, first) if where.endswith(".npy") else _text_operations(where, first)
    if not len(found.ops):
        raise InputError("found no operation, expected at least one", where=where)
    return found


def write_operations(path: Path | str, operations: Operations) -> None:
    """Write operations as `.npy` where the name ends so, else as a text."""
    if str(path).endswith(".npy"):
        rows = np.empty(len(operations.ops), LAYOUT)
        rows["op"], rows["key"], rows["payload"] = operations
        write_bytes(path, _npy(rows))
    else:
        write_bytes(path, "".join(_lines(operations)).encode())


def _lines(operations: Operations) -> Iterator[str]:
    for op, key, payload in zip(*(array.tolist() for array in operations), strict=True):
        yield f"{WORDS[op]} {key} {payload}\n" if op in (INSERT, SCAN) else f"{WORDS[op]} {key}\n"


def _stored_operations(where: str, first: int | None) -> Operations:
    rows = _array(where, LAYOUT)[:first]
    ops = np.ascontiguousarray(rows["op"])
    wrong = np.flatnonzero(ops >= len(WORDS))
    if len(wrong):
        raise InputError(
            f"found op {ops[wrong[0]]} of operation {wrong[0]}, expected 0 lookup, 1 insert, 2 delete or 3 scan",
            where=where,
        )
    return Operations(ops, *(np.ascontiguousarray(rows[name], dtype=np.uint64) for name in ("key", "payload")))


def _text_operations(where: str, first: int | None) -> Operations:
    _size(where)
    try:
        with open(where, "rb") as stream:
            rows = np.fromiter(islice(_parsed(stream, where), first), LAYOUT)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error
    return Operations(*(np.ascontiguousarray(rows[name]) for name in ("op", "key", "payload")))


def _parsed(stream: io.BufferedReader, where: str) -> Iterator[tuple[int, int, int]]:
    number = 0
    while line := stream.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise InputError(f"line {number}: found more than {MOST_LINE} bytes, expected an operation", where=where)
        words = line.split(b"#", 1)[0].split()
        if words:
            yield _operation(words, f"{where}: line {number}")


def _operation(words: Sequence[bytes], where: str) -> tuple[int, int, int]:
    op, numbers = COUNTS.get(words[0], (0, ())), words[1:]
    if len(numbers) not in op[1] or not all(map(bytes.isdigit, numbers)):
        found = short(b" ".join(words).decode("utf-8", "replace"))
        expected = "`insert KEY [PAYLOAD]`, `lookup KEY`, `delete KEY` or `scan KEY COUNT`"
        raise InputError(f"found {found}, expected {expected}", where=where)
    for each in numbers:
        if len(each) > 20 or int(each) >= 1 << 64:
            raise InputError(f"found {short(each.decode())}, expected a number below 2^64", where=where)
    return op[0], int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


# Both


def digest_of_file(path: Path | str) -> str:
    """`sha256:` and the digest of the bytes of a file, as an `InputRef` records it. Raises InputError when it cannot be
    read."""
    _size(str(path))
    try:
        with open(path, "rb") as stream:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(path)) from error


def _npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _array(where: str, layout: np.dtype[Any]) -> NDArray[Any]:
    """The array of a `.npy` file, memory-mapped. Raises InputError for one of another type or shape, such as pickled
    objects, which are never read."""
    _size(where)
    try:
        array = np.lib.format.open_memmap(where, mode="r")
    except NOT_NPY as error:
        raise InputError(f"cannot read as .npy: {short(str(error))}", where=where) from error
    if array.dtype.newbyteorder("=") != layout.newbyteorder("=") or array.ndim != 1:
        found = f"{array.dtype} of shape {array.shape}".replace("\n", " ")
        expected = "unsigned 64-bit integers" if layout.names is None else "fields op (u1), key (u8), payload (u8)"
        raise InputError(f"found {found}, expected {expected} in one dimension", where=where)
    return array


def _size(where: str) -> int:
    """Bytes of a file. Raises InputError for what is no regular file."""
    try:
        if not os.path.isfile(where):
            os.stat(where)
            raise InputError("found a folder or device, expected a file", where=where)
        return os.stat(where).st_size
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error
    except ValueError as error:  # a NUL character in the path
        raise InputError(f"cannot read: {error}", where=repr(where)) from error
