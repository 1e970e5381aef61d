"""The remote shell of launchers of MPI inside a lab: `lab_shell.py HOST COMMAND...` runs a command on a host of it."""

from __future__ import annotations

import os
import sys

from treadle.lab import state
from treadle.lab.namespaces import enter


def main(words: list[str]) -> None:
    """Enter the host, and become a shell that runs the command; options of ssh are passed over."""
    while words[0].startswith("-"):
        words = words[1:]
    lab, folder = state.read(), os.getcwd()
    assert lab is not None
    place = next(place for place, host in enumerate(lab.layout.hosts) if host.name == words[0])
    for file in lab.open(place):
        enter(file)
    os.chdir(folder)
    os.execvp("sh", ["sh", "-c", " ".join(words[1:])])


if __name__ == "__main__":
    main(sys.argv[1:])
