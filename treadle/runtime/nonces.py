"""The nonce of a job: who knows it belongs to the job. It never travels; greetings prove that it is known."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from treadle.planner.errors import InputError
from treadle.runtime.private_files import read_private
from treadle.runtime.wire.greeting import NONCE_BYTES


def fresh_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def nonce_of_environment(variable: str) -> str | None:
    """The nonce of an environment variable, as hexadecimal digits. Raises InputError where it is none."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    check_nonce(text, variable)
    return text


def nonce_of_file(path: Path) -> str:
    """The nonce in a file, which gets a fresh one where it is not there: the first of several processes of a shared
    folder writes it. Raises InputError."""
    fresh = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(number, "w", encoding="ascii") as stream:
                stream.write(fresh_nonce() + "\n")
            with suppress(FileExistsError):
                os.link(fresh, path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    finally:
        fresh.unlink(missing_ok=True)
    text = read_private(path).decode("ascii", "replace").strip()
    check_nonce(text, str(path))
    return text


def check_nonce(text: str, where: str) -> None:
    """Raises InputError for what is no nonce."""
    if len(text) != 2 * NONCE_BYTES or any(each not in "0123456789abcdef" for each in text):
        raise InputError(f"found no nonce, expected {2 * NONCE_BYTES} hexadecimal digits", where=where)
