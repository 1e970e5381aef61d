"""A configuration for NCCL's example tuner plugin: which of NCCL's own algorithms to take for which bytes.

Format: NVIDIA/nccl, plugins/tuner/example (`nccl_tuner.conf`): one line
`collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks`, the first match wins. A row makes one entry
of NCCL's cost table free; NCCL ignores it where it cannot run that entry. The plugin begins every call with one
channel and -1 keeps that; with 0 NCCL chooses the number of channels (`plugin.c`, `getCollInfo`). Our plans themselves
do not run in NCCL: a row is written only where NCCL has the method, the other ranges are comments.
"""

from __future__ import annotations

from treadle.codegen.templates import remark
from treadle.planner.documents.selection import Entry, Selection

FILE_NAME = "nccl_tuner.conf"

ALGORITHMS: dict[tuple[str, str], str] = {
    **{(name, "ring"): "ring" for name in ("allgather", "allreduce", "broadcast", "reduce", "reducescatter")},
    **{(name, "nvls"): "nvls" for name in ("allgather", "allreduce", "reducescatter")},
    ("allreduce", "double-tree"): "tree",
    ("allreduce", "binomial"): "tree",
    ("allgather", "halving-doubling"): "pat",
    ("reducescatter", "halving-doubling"): "pat",
}
"""NCCL's name of our methods, by collective. NCCL runs Tree for allreduce only, NVLS not for a broadcast or reduce,
and PAT for one GPU in each node."""

CHANNELS = 0

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


def emit(selection: Selection) -> str:
    """The text of the configuration."""
    nodes = "1 node" if selection.nodes == 1 else f"{selection.nodes} nodes"
    lines = [HEADER.format(name=selection.name, nodes=nodes)]
    for entry in selection.entries:
        low, high = call_bytes(selection, entry)
        algorithm, method = algorithm_of(selection, entry), remark(entry.method)
        times = f"predicted {entry.predicted_us[0]:.3f} to {entry.predicted_us[1]:.3f} us"
        if algorithm is None:
            lines.append(f"# {low} to {high} bytes: {method}, {times}. NCCL has no such algorithm and chooses.\n")
            continue
        lines.append(f"# {method}, {times} as planned\n")
        protocol = "simple" if algorithm == "pat" else entry.protocol.lower()  # PAT has only one
        fields = (selection.collective, low, high, algorithm, protocol, CHANNELS, selection.nodes, selection.ranks)
        lines.append(",".join(map(str, fields)) + "\n")
    return "".join(lines)


def algorithm_of(selection: Selection, entry: Entry) -> str | None:
    """NCCL's algorithm for an entry, None where it has none."""
    found = ALGORITHMS.get((selection.collective, entry.method))
    return None if found == "pat" and selection.ranks != selection.nodes else found


def call_bytes(selection: Selection, entry: Entry) -> tuple[int, int]:
    """The entry's range in the bytes that NCCL and MSCCL compare: all ranks' parts together. For an allgather that is
    the output; a scatter counts the part of one rank, every other collective the input."""
    if selection.collective == "allgather":
        return entry.min_bytes * selection.ranks, (entry.max_bytes + 1) * selection.ranks - 1
    if selection.collective == "scatter":
        return -(-entry.min_bytes // selection.ranks), entry.max_bytes // selection.ranks
    return entry.min_bytes, entry.max_bytes
