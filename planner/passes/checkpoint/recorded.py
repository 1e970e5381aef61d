"""An iteration as a profiler recorded it: which messages go between machines, and when the update begins."""

from __future__ import annotations

import re

from treadle.planner.documents.trace import Op, Trace
from treadle.planner.passes.checkpoint.spans import Iteration, Sending


def recorded(trace: Trace, devices: int) -> Iteration | None:
    """The iteration of a trace with the times of its messages; None for one without any.

    Messages of groups within a machine of `devices` ranks leave its links idle. The weights change from the first
    operator of the optimizer after the backward pass on, or at the end if there is none.
    """
    timed = [op for op in trace.ops if op.start_ns is not None]
    talk = [op for op in timed if op.comm and "collective" in op.comm]
    if not talk:
        return None
    end = max(map(_end, timed))
    backward = max((_start(op) for op in timed if op.phase == "backward"), default=end)
    update = min((_start(op) for op in timed if op.phase == "optimizer" and _start(op) > backward), default=end)
    sent = sorted(
        (_start(op), min(update, _end(op)), str((op.comm or {})["collective"]))
        for op in talk
        if _start(op) < update and _leaves(op, devices)
    )
    return Iteration(tuple(Sending(word, start, stop) for start, stop, word in sent), update, end)


def _leaves(op: Op, devices: int) -> bool:
    """Whether a message goes to another machine; taken to if its group is not known."""
    ranks = [int(each) for each in re.findall(r"[0-9]{1,9}", str((op.comm or {}).get("ranks", "")))]
    return not ranks or len({rank // devices for rank in ranks}) > 1


def _start(op: Op) -> int:
    return op.start_ns or 0


def _end(op: Op) -> int:
    return _start(op) + (op.time_ns or 0)
