"""The tail of self-attention, tensor parallel: projection, bias, dropout and residual (CoCoNet, section 2)."""

from treadle.fusion import *

B, S, H = dims("B", "S", "H")
w = Tensor("w", f16, [H, H], Sliced(0))
b = Tensor("b", f16, [H], Replicated)
x = Tensor("x", f16, [B, S, H], Sliced(2))
r = Tensor("r", f16, [B, S, H], Replicated)
layer = MatMul(x, w)
sum_ = AllReduce("+", layer)
d = Dropout(sum_ + b, p=0.1, key="attention.dropout")
out = d + r
program = Execute("attention", [w, x, b, r], [out])
