"""stdout and stderr as commands write to them: a terminal's characters, a reader that went, a disk that is full."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12 on


class _Stdout(io.FileIO):
    """Takes everything after the first failure, so that a command ends as it would have ended."""

    failed = False

    def write(self, data: Buffer, /) -> int:
        """Raises OSError that names stdout, once, unless the reader has closed the pipe, which is no error."""
        if not self.failed:
            try:
                return super().write(data)
            except OSError as error:
                self.failed = True
                if not isinstance(error, BrokenPipeError):
                    raise OSError(error.errno, error.strerror, "stdout") from error
        return memoryview(data).nbytes


def open_streams() -> None:
    """Prepare sys.stdout and sys.stderr: one that is closed takes everything, and what one cannot show is replaced."""
    out, err = sys.stdout, sys.stderr
    if out is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(out, io.TextIOWrapper) and out is sys.__stdout__:  # not one that a caller put there
        buffer = io.BufferedWriter(_Stdout(out.fileno(), "w", closefd=False))
        lines, through = out.line_buffering, out.write_through
        sys.stdout = io.TextIOWrapper(buffer, out.encoding, "replace", line_buffering=lines, write_through=through)
    if err is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(err, io.TextIOWrapper):
        err.reconfigure(errors="replace")
