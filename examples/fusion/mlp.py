"""The tail of the feed-forward part of a transformer layer, tensor parallel (CoCoNet, section 6)."""

from treadle.fusion import *

B, S, H = dims("B", "S", "H")
w = Tensor("w", f16, [4 * H, H], Sliced(0))
b = Tensor("b", f16, [H], Replicated)
x = Tensor("x", f16, [B, S, 4 * H], Sliced(2))
r = Tensor("r", f16, [B, S, H], Replicated)
layer = MatMul(x, w)
sum_ = AllReduce("+", layer)
d = Dropout(sum_ + b, p=0.1, key="mlp.dropout")
out = d + r
program = Execute("mlp", [w, x, b, r], [out])
