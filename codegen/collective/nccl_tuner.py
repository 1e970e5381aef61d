"""A configuration for NCCL's example tuner plugin: which of NCCL's own algorithms to take for which bytes.

Format: NVIDIA/nccl, plugins/tuner/example (`nccl_tuner.conf`): one line
`collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks`, the first match wins. A row makes one entry
of NCCL's cost table free; NCCL ignores it where it cannot run that entry. The plugin begins every call with one
channel and -1 keeps that; with 0 NCCL chooses the number of channels (`plugin.c`, `getCollInfo`). Our plans themselves
do not run in NCCL: rows are the rivals of the selection, NCCL's best by size; comments say what our plan would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from treadle.codegen.templates import remark
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.selection import NcclRange, Selection

FILE_NAME = "nccl_tuner.conf"
CHANNELS = 0
LIMIT = 2**64 - 1
"""What the last row ends with: as many bytes as the plugin can read."""

HEADER = """\
# Which of NCCL's algorithms to take, from treadle's selection for {name} on {nodes}.
# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks
#
# For NCCL's example tuner plugin (plugins/tuner/example): set NCCL_TUNER_PLUGIN to its library and
# NCCL_TUNER_CONFIG_FILE to this file. Bytes are those that NCCL counts: the larger of a rank's two buffers.
# Overridden: NCCL's own choice of algorithm and protocol for calls of exactly this number of nodes and ranks.
# Not overridden: the number of channels (0: NCCL's own) and the algorithm of calls that no row matches. Beware: the
# example plugin limits such calls to one channel; begin its pluginGetCollInfo with *nChannels = 0 to leave them alone.
# The environment wins: NCCL_ALGO and NCCL_PROTO switch a row off. So does NCCL for what it cannot run, such as LL128
# on links that do not keep 128 bytes together.
"""
MODEL = """\
# Rows are NCCL's best by its own model of itself, times the factors in transports.nccl_library of the profile. Without
# factors they repeat what NCCL chooses anyway; `treadle profile import` fits them to logs of nccl-tests.
"""
NONE = """\
# No row: {why}. NCCL makes its own choice.
"""


def emit(selection: Selection) -> str:
    """The text of the configuration."""
    nodes = "1 node" if selection.nodes == 1 else f"{selection.nodes} nodes"
    header = HEADER.format(name=selection.name, nodes=nodes)
    if not selection.rivals:
        plans = (
            f"# {' to '.join(map(str, call_bytes(selection, entry.min_bytes, entry.max_bytes)))} bytes: "
            f"{remark(entry.method)}, predicted {entry.predicted_us[0]:.3f} to {entry.predicted_us[1]:.3f} us\n"
            for entry in selection.entries
        )
        return "".join([header, NONE.format(why=why_none(selection)), *plans])
    rows = (line for group in _rows(selection) for line in _row(selection, group))
    return "".join([header, MODEL, *rows])


def why_none(selection: Selection) -> str:
    """Why a selection has no rivals."""
    if selection.collective in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce"):
        return "the selection has no times of NCCL; plan it again on a profile of equal nodes of GPUs"
    return f"NCCL has one algorithm for {selection.collective}, and its tuner none to choose"


def call_bytes(selection: Selection, low: int, high: int) -> tuple[int, int]:
    """A range of the input of a rank in the bytes that NCCL and MSCCL compare: all ranks' parts together. For an
    allgather that is the output; a scatter counts the part of one rank, every other collective the input."""
    if selection.collective == "allgather":
        return low * selection.ranks, (high + 1) * selection.ranks - 1
    if selection.collective == "scatter":
        return -(-low // selection.ranks), high // selection.ranks
    return low, high


def _rows(selection: Selection) -> Iterator[list[NcclRange]]:
    """Neighbours of one algorithm and protocol, which are one row."""
    for _, group in groupby(selection.rivals, key=lambda rival: (rival.algorithm, rival.protocol)):
        yield list(group)


def _row(selection: Selection, group: list[NcclRange]) -> Iterator[str]:
    for rival in group:
        span = f"{format_bytes(rival.min_bytes)} to {format_bytes(rival.max_bytes)} of input"
        ours = selection.at(rival.min_bytes)
        plan = "no plan" if ours is None else f"the plan {remark(ours.method)}"
        if rival.plan_us is not None:
            plan += f" {_us(rival.plan_us)}"
        yield f"# {span}: {_us(rival.time_us)} on {_channels(rival)}; {plan}\n"
    low, high = call_bytes(selection, group[0].min_bytes, group[-1].max_bytes)
    last = LIMIT if group[-1] is selection.rivals[-1] else high
    fields = (selection.collective, low, last, group[0].algorithm, group[0].protocol.lower(), CHANNELS)
    yield ",".join(map(str, (*fields, selection.nodes, selection.ranks))) + "\n"


def _us(times: tuple[float, float]) -> str:
    return f"{times[0]:.3f} to {times[1]:.3f} us"


def _channels(rival: NcclRange) -> str:
    low, high = rival.channels
    return f"{high} channel{'s' * (high > 1)}" if low == high else f"{low} to {high} channels"
