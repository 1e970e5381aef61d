"""A step of Muon on a matrix that ranks share by rows: five Newton-Schulz iterations on the gathered gradient.

`h` is the transposed gradient `g`, `y` that of `x`: the language has no transposition, and b1, b2, ... are symmetric.
"""

from treadle.fusion import *

M, N = dims("M", "N")
lr = Scalars("lr", f32)
w = Tensor("w", f32, [M, N], Sliced(0))
g = Tensor("g", bf16, [M, N], Sliced(0))
h = Tensor("h", bf16, [N, M], Sliced(0))
x = AllGather(g / (Norm(g) + 1e-7))
y = AllGather(h / (Norm(h) + 1e-7))
a1 = MatMul(x, y)
s1 = MatMul(a1, a1)
b1 = a1 * -4.775 + s1 * 2.0315
u1 = MatMul(b1, x)
x1 = x * 3.4445 + u1
v1 = MatMul(y, b1)
y1 = y * 3.4445 + v1
a2 = MatMul(x1, y1)
s2 = MatMul(a2, a2)
b2 = a2 * -4.775 + s2 * 2.0315
u2 = MatMul(b2, x1)
x2 = x1 * 3.4445 + u2
v2 = MatMul(y1, b2)
y2 = y1 * 3.4445 + v2
a3 = MatMul(x2, y2)
s3 = MatMul(a3, a3)
b3 = a3 * -4.775 + s3 * 2.0315
u3 = MatMul(b3, x2)
x3 = x2 * 3.4445 + u3
v3 = MatMul(y2, b3)
y3 = y2 * 3.4445 + v3
a4 = MatMul(x3, y3)
s4 = MatMul(a4, a4)
b4 = a4 * -4.775 + s4 * 2.0315
u4 = MatMul(b4, x3)
x4 = x3 * 3.4445 + u4
v4 = MatMul(y3, b4)
y4 = y3 * 3.4445 + v4
a5 = MatMul(x4, y4)
s5 = MatMul(a5, a5)
b5 = a5 * -4.775 + s5 * 2.0315
u5 = MatMul(b5, x4)
x5 = x4 * 3.4445 + u5
w_ = Update(w, w - lr * Cast(f32, Slice(x5, 0)))
program = Execute("muon", [w, g, h, lr], [w_])
