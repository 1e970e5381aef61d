"""Planned collectives for training scripts: `treadle.comm.init(DIR)`, then the calls of torch.distributed; or
`torch.distributed.init_process_group("treadle")`, a backend that importing this package registers (backend.py).

DIR is a folder that `treadle generate` wrote, for one plan or for a selection, or a folder of such folders. Every call
takes the planned algorithm for its size, if any. Otherwise it runs the framework's own collective and logs the reason
once, on the logger `treadle.comm`. `explain` returns the choice, `summary` counts. docs/runtime.md has the table of
dtypes and ops.
"""

from __future__ import annotations

from treadle.comm.collectives import (
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    broadcast,
    exchange,
    explain,
    gather,
    init,
    reduce,
    reduce_scatter_tensor,
    scatter,
    shutdown,
    summary,
)
from treadle.comm.hook import ddp_hook
from treadle.comm.library import Choice
from treadle.comm.plans import GroupOptions
from treadle.comm.tally import Summary

__all__ = [
    "Choice",
    "GroupOptions",
    "Summary",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "ddp_hook",
    "exchange",
    "explain",
    "gather",
    "init",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "shutdown",
    "summary",
]
