"""What a memory plan keeps from the forward to the backward pass, as other runtimes can follow it.

PyTorch's own checkpointing knows which values are saved, but neither when each of the others is recomputed nor with
which kernel. So of a plan only S^K is carried over: the forward nodes that are live when the forward pass ends.
"""

from __future__ import annotations

import re
from typing import assert_never

from treadle.codegen.python_text import constants
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward

SAME_OPERATOR = {
    "_batch_norm_with_update": "batch_norm",
    "_batch_norm_with_update_functional": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "miopen_batch_norm": "batch_norm",
    "native_batch_norm": "batch_norm",
    "max_pool2d": "max_pool2d_with_indices",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable": "scaled_dot_product_attention",
}
"""One name for operators that stand for each other on different devices, functional or not."""


def kept_nodes(decisions: MemoryDecisions) -> frozenset[int]:
    """The forward nodes whose outputs are live at the end of the forward pass."""
    live: set[int] = set()
    first = len(decisions.problem.bwd) + 1
    for instruction in decisions.program:
        match instruction:
            case EnterStage(k):
                if k < first:
                    break
            case RunForward(node, _, inplace):
                overwritten = decisions.problem.fwd[node].inplace_of
                if inplace and overwritten is not None:
                    live.discard(overwritten)
                live.add(node)
            case Drop(node):
                live.discard(node)
            case RunBackward():
                pass
            case _:
                assert_never(instruction)
    return frozenset(live)


def operator_name(target: str) -> str:
    """`aten.relu_.default` and `aten.relu.default` are both `relu`, as is `aten::relu` of an imported trace."""
    words = re.split(r"\.|::", target)
    name = words[min(1, len(words) - 1)]
    stripped = name.rstrip("_")
    return SAME_OPERATOR.get(stripped, stripped)


def same_operators() -> list[str]:
    """`SAME_OPERATOR` as lines of Python, for generated text that has to know it as well."""
    return list(constants(SAME_OPERATOR=dict(sorted(SAME_OPERATOR.items()))))
