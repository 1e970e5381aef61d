"""Bytes of Gist's encodings on the same problem: one point, without a budget and without times.

"Gist: Efficient Data Encoding for Deep Neural Network Training", section 4. Values that the backward pass reads are
stored encoded and decoded right before they are read:

* Binarize: one bit per element of a ReLU that only pooling reads, and 4 bits per element of pooling for the place of
  its maximum;
* SSDC: the nonzero values of a ReLU that a convolution reads, in rows of 256 columns: a value, one byte of column
  index, and 4 bytes per row. The share of zeros depends on the data; `SPARSITY` is assumed;
* DPR: everything else, and the values of SSDC, in 16 bits instead of 32.
"""

from __future__ import annotations

from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.problem import MemoryProblem

SPARSITY = 0.5
"""Share of zeros after a ReLU; Gist, section 3.2, reports more than half for VGG-16 and most layers of others."""
COLUMNS = 256


def gist_peak(problem: MemoryProblem, bytes_of_element: int = 4) -> int:
    """Peak bytes of the step that stores everything encoded; `problem` keeps its first implementations."""
    schedule = store_all(problem)
    nodes = [run.node for run in schedule.runs[0]]
    needs = [schedule.needs(problem, stage) for stage in range(1, len(problem.bwd) + 1)]
    last_backward = {i: k for k, read in enumerate(needs) for i in read}
    last_forward = {i: i for i in nodes} | {j: i for i in nodes for j in problem.fwd[i].inputs}
    encoded = {i: _encoded(problem, i, bytes_of_element) for i in last_backward}
    size = [node.out_bytes for node in problem.fwd]
    peak = 0
    for i in nodes:
        whole = sum(size[j] for j in nodes if j <= i <= last_forward[j])
        stored = sum(count for j, count in encoded.items() if last_forward[j] < i)
        run = next(run for run in schedule.runs[0] if run.node == i)
        peak = max(peak, whole + stored + problem.fwd[i].impls[run.impl].workspace_bytes)
    for k, back in enumerate(problem.bwd):
        impl = back.impls[schedule.backward[k]]
        stored = sum(count for j, count in encoded.items() if last_backward[j] >= k)
        decoded = sum(size[j] for j in set(impl.needs))
        made = 0 if impl.grad_inplace else back.out_grad_bytes
        peak = max(peak, stored + decoded + back.live_grad_bytes + made + impl.workspace_bytes)
    return problem.base_bytes + peak


def _encoded(problem: MemoryProblem, i: int, element: int) -> int:
    node = problem.fwd[i]
    elements = node.out_bytes // element
    readers = [other.op for other in problem.fwd if i in other.inputs and other.kind == "op"]
    if "pool" in node.op:
        return elements // 2
    if "relu" in node.op and readers and all("pool" in op for op in readers):
        return -(-elements // 8)
    if "relu" in node.op and any("conv" in op for op in readers):
        kept = round(elements * (1 - SPARSITY))
        return min(2 * elements, 3 * kept + 4 * -(-elements // COLUMNS))
    return 2 * elements
