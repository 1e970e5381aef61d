"""The process that ends what a killed `treadle lab run` left on the hosts: also what its processes had started.

`python -m treadle.lab.guard NAME=VALUE` reads a `Lab` from its standard input. At the end of that input it kills the
processes in the lab that have this environment variable.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from treadle.lab import state
from treadle.lab.state import Lab


@contextmanager
def guarded(lab: Lab, variable: str) -> Iterator[None]:
    """An exception in the block, or the end of this process, ends those in the lab with the variable `NAME=value`."""
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "treadle.lab.guard", variable],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        with suppress(BrokenPipeError):
            guard.stdin.write(msgspec.json.encode(lab) + b"\n")
            guard.stdin.flush()
        yield
        guard.kill()
    finally:
        guard.communicate()


def main() -> None:
    lab = msgspec.json.decode(sys.stdin.buffer.readline(), type=Lab)
    sys.stdin.buffer.read()
    state.end_processes(lab, lambda pid: state.has_variable(pid, sys.argv[1]))


if __name__ == "__main__":
    main()
