"""Reading and writing whole files: plain reasons when it fails, nothing half-written."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from treadle.planner.documents.nearest import nearest, question
from treadle.planner.errors import InputError

MAX_BYTES = 2**30
log = logging.getLogger("treadle")


def read_text(path: Path | str) -> str:
    """The UTF-8 text of a regular file of at most 1 GiB. Raises InputError when there is none to be had."""
    where = str(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"found {_file_type(status.st_mode)}, expected a file", where=where)
        if status.st_size > MAX_BYTES:
            raise InputError("found a file over 1 GiB, expected a document", where=where)
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"cannot read: {error.strerror}{_near_file(Path(path))}", where=where) from error
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"found a byte at {error.start} that is not UTF-8, expected a text file", where=where
        ) from error
    except ValueError as error:  # a NUL character in the path
        raise InputError(f"cannot read: {error}", where=repr(where)) from error


def _near_file(path: Path) -> str:
    """The question whether another file of the folder was meant."""
    with suppress(OSError):
        # An ending in common is no likeness.
        names = [name for name in sorted(os.listdir(path.parent)) if nearest(path.stem, [Path(name).stem])]
        if near := question(path.name, names):
            return f"; {near}"
    return ""


def write_text(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8, as `write_bytes` does."""
    try:
        write_bytes(path, text.encode())
    except UnicodeEncodeError as error:
        raise InputError("cannot write: half of a surrogate pair in a text", where=str(path)) from error


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` through a temporary file and a rename, into folders made as needed.

    A symbolic link stays and its target is replaced; a device or pipe is written to. Raises InputError when the place
    cannot be written.
    """
    where = str(path)
    try:
        given = Path(path)
        if given.is_dir():
            raise InputError("found a folder, expected a file to write", where=where)
        if given.exists() and not given.is_file():
            with open(given, "wb") as stream:
                stream.write(data)
            return
        _replace(Path(os.path.realpath(given)), data)
        log.info("wrote %s", where)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=where) from error
    except ValueError as error:
        raise InputError(f"cannot write: {error}", where=repr(where)) from error


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "xb") as stream:
            stream.write(data)
        if target.exists():
            os.chmod(fresh, stat.S_IMODE(target.stat().st_mode))
        replace_file(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)


def replace_file(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target` so that a crash of the machine leaves either the old or the new file, complete."""
    _flush(fresh)
    os.replace(fresh, target)
    with suppress(OSError):  # some file systems refuse this for folders
        _flush(target.parent)


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _file_type(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "something else"
