"""`up`, `down` and what is left of a lab whose keeper was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from treadle.lab import state
from treadle.lab.keeper import BUSY, LACKING, STAY
from treadle.lab.layout import LabLayout
from treadle.lab.state import Lab
from treadle.planner.documents.scalars import many
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError


@contextmanager
def up(layout: LabLayout) -> Iterator[Lab]:
    """Make the lab, which stays from the end of the block until `down`; an exception in the block ends it.

    Raises InputError while another is up, MissingBackendError where this machine cannot have one, CheckFailed where
    its keeper was killed.
    """
    with ExitStack() as stack:
        lab, keeper = _start(layout, stack)
        yield lab
        if not _answer(keeper, STAY):
            raise CheckFailed("the process that keeps the lab was killed")
        stack.pop_all()


def down() -> Lab | None:
    """End the lab and all processes in it, also what a killed keeper left. Returns what was there."""
    lab = state.read()
    state.end_keeper()
    state.end_left()
    return lab


@contextmanager
def the_lab(layout: LabLayout) -> Iterator[Lab]:
    """The lab of `layout` if it is up, otherwise one that ends with the block.

    Raises as `up`, and InputError where the lab that was up has ended without `down`.
    """
    is_up = state.is_up()
    lab = state.read()
    if lab is not None and (is_up or lab.stays):
        there = f"{many(len(lab.layout.hosts), 'host')} of {lab.layout.profile} at --scale {lab.layout.scale:g}"
        if not is_up:
            raise InputError(
                f"the lab of {there} was killed; start it again with `treadle lab up`, or `treadle lab down` ends it",
                where=layout.profile,
            )
        if lab.layout != layout:
            raise InputError(f"a lab of {there} is up; end it with `treadle lab down`", where=layout.profile)
        yield lab
        return
    with ExitStack() as stack:
        lab, _ = _start(layout, stack)
        yield lab


def _start(layout: LabLayout, stack: ExitStack) -> tuple[Lab, subprocess.Popen[bytes]]:
    """A lab that ends with the stack, or with this process."""
    if sys.platform != "linux":
        raise MissingBackendError("a lab needs the network namespaces of Linux")
    if state.is_up():
        raise _taken(layout)
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "treadle.lab.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    stack.callback(_end, keeper)
    answer = _answer(keeper, msgspec.json.encode(layout) + b"\n").decode(errors="replace").strip()
    if answer == BUSY:
        raise _taken(layout)
    if answer == LACKING:
        raise MissingBackendError("a lab needs pyroute2; install it with: pip install 'treadle[lab]'")
    lab = state.read() if not answer else None
    if lab is None or lab.keeper != keeper.pid:
        why = answer or "its keeper ended"
        raise MissingBackendError(
            f"this machine cannot have a lab: {why}; it needs root or user namespaces, and bridges, veth, HTB and TBF"
        )
    return lab, keeper


def _answer(keeper: subprocess.Popen[bytes], line: bytes) -> bytes:
    """What the keeper answers to a line, nothing where it has ended."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with suppress(BrokenPipeError):
        keeper.stdin.write(line)
        keeper.stdin.flush()
    return keeper.stdout.readline()


def _end(keeper: subprocess.Popen[bytes]) -> None:
    lab = state.read()
    if lab is not None and lab.keeper == keeper.pid:
        state.end_processes(lab)
        state.forget()
    keeper.kill()
    keeper.communicate()


def _taken(layout: LabLayout) -> InputError:
    there = state.read()
    what = f"a lab of {there.layout.profile}" if there is not None else "a lab"
    return InputError(f"{what} is up already; end it with `treadle lab down`", where=layout.profile)
