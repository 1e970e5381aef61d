"""Residual and RMSNorm after a tensor-parallel layer: rows are independent, so ranks can share them.

`share` is one over the width of a row. The stream of residuals is state, which ranks may keep in slices.
"""

from treadle.fusion import *

T, H = dims("T", "H")
y = Tensor("y", f16, [T, H], Local)
r = Tensor("r", f16, [T, H], Replicated)
weight = Tensor("weight", f32, [H], Replicated)
share, eps = Scalars("share eps", f32)
sum_ = AllReduce("+", y)
h = Update(r, sum_ + r)
wide = Cast(f32, h)
square = ReduceTensor("+", wide * wide, dim=1)
out = Cast(f16, wide * Rsqrt(square * share + eps) * weight)
program = Execute("rmsnorm", [y, r, weight, share, eps], [out])
