"""Sequence parallel, out of the layer: partial products of all ranks are summed, each rank keeps its rows."""

from treadle.fusion import *

T, H, F = dims("T", "H", "F")
x = Tensor("x", f16, [T, F], Sliced(1))
w = Tensor("w", f16, [F, H], Sliced(0))
part = MatMul(x, w)
out = ReduceScatter("+", part, dim=0)
program = Execute("matmul_rs", [x, w], [out])
