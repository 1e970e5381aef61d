"""A step of Adam in f32 on the sum of the gradients, data parallel (CoCoNet, section 4.1). `t` counts from 1."""

from treadle.fusion import *

N = dims("N")
g = Tensor("g", f32, [N], Local)
p = Tensor("p", f32, [N], Replicated)
m = Tensor("m", f32, [N], Replicated)
v = Tensor("v", f32, [N], Replicated)
lr, b1, b2, t, eps = Scalars("lr b1 b2 t eps", f32)
sum_ = AllReduce("+", g)
m_ = Update(m, m * b1 + (1 - b1) * sum_)
v_ = Update(v, v * b2 + (1 - b2) * sum_ * sum_)
m1 = m_ / (1 - Pow(b1, t))
v1 = v_ / (1 - Pow(b2, t))
p_ = Update(p, p - lr * m1 / (Sqrt(v1) + eps))
program = Execute("adam_f32", [g, p, m, v, lr, b1, b2, t, eps], [p_])
