"""Files with secrets: written whole, and read only where no other user may."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from treadle.planner.documents.files import replace_file
from treadle.planner.errors import InputError

MOST_BYTES = 1 << 20


def read_private(path: Path) -> bytes:
    """Raises InputError for a file that cannot be read, that others may read, or that another user owns."""
    where = str(path)
    try:
        with open(path, "rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid not in (0, os.geteuid()):
                raise InputError(f"user {status.st_uid} owns it", where=where)
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise InputError(f"others may read it (mode {mode:04o}); chmod 600 it", where=where)
            return stream.read(MOST_BYTES)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=where) from error


def write_private(path: Path, data: bytes) -> None:
    """Raises InputError where it cannot be written."""
    fresh = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
    try:
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(number, "wb") as stream:
            stream.write(data)
        replace_file(fresh, path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    finally:
        fresh.unlink(missing_ok=True)
