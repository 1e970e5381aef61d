"""Bytes of other tools' files: decompression, size limits, and errors that name the place."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from treadle.planner.errors import InputError

T = TypeVar("T")

MAX_BYTES = 2**30


def read_bytes(path: Path | str) -> bytes:
    """The bytes of the file at `path`, unpacked where it is gzip or a tar archive with one file in it.

    Raises InputError when there is none to be had, or more than 1 GiB.
    """
    where = str(path)
    try:
        if not Path(path).is_file():
            raise InputError("found no file there, expected a trace", where=where)
        with open(path, "rb") as stream:
            data = _limited(stream, where)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as stream:
                data = _limited(stream, where)
        if data[257:262] == b"ustar":
            data = _only_member(data, where)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"found a broken archive ({error}), expected a whole one", where=where) from error
    except ValueError as error:  # a NUL character in the path
        raise InputError(f"cannot read: {error}", where=repr(where)) from error
    if not data:
        raise InputError("found an empty file, expected a trace", where=where)
    return data


def decode_json(data: bytes, expect: type[T], where: str) -> T:
    """`data` as JSON of the type `expect`. Raises InputError naming the place of the first mismatch."""
    try:
        return msgspec.json.decode(data, type=expect, strict=True)
    except msgspec.ValidationError as error:
        text = str(error)
        located = re.fullmatch(r"(?s)(.*) - at `(.*)`", text)
        message, path = (located[1], located[2]) if located else (text, "$")
        match = re.fullmatch(r"(?s)Expected `(.*?)`, got `(.*)`", message)
        message = f"found {match[2]}, expected {match[1]}" if match else _sentence(message)
        raise InputError(message, where=where, path=path) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"found broken JSON ({_sentence(str(error))}), expected a whole trace", where=where) from error


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _limited(stream: Any, where: str) -> bytes:
    data: bytes = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError("found over 1 GiB, expected a trace of one step", where=where)
    return data


def _only_member(data: bytes, where: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        if len(members) != 1:
            names = ", ".join(sorted(member.name for member in members)[:8])
            raise InputError(
                f"found {len(members)} files in the archive ({names}), expected one; unpack it and import one of them",
                where=where,
            )
        content = archive.extractfile(members[0])
        assert content is not None
        return _limited(content, where)
