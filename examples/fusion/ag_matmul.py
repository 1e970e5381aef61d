"""Sequence parallel, into the layer: every rank needs all rows for its columns of the product."""

from treadle.fusion import *

T, H, F = dims("T", "H", "F")
x = Tensor("x", f16, [T, H], Sliced(0))
w = Tensor("w", f16, [H, F], Sliced(1))
rows = AllGather(x)
out = MatMul(rows, w)
program = Execute("ag_matmul", [x, w], [out])
