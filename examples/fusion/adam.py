"""A step of Adam in mixed precision, data parallel (CoCoNet, section 4.1).

Gradients and the model's copy of the parameters are f16; the master copy and both moments are f32. `t` counts from 1.
"""

from treadle.fusion import *

N = dims("N")
g = Tensor("g", f16, [N], Local)
p = Tensor("p", f32, [N], Replicated)
ph = Tensor("ph", f16, [N], Replicated)
m = Tensor("m", f32, [N], Replicated)
v = Tensor("v", f32, [N], Replicated)
lr, b1, b2, t, eps = Scalars("lr b1 b2 t eps", f32)
sum_ = AllReduce("+", g)
avg = Cast(f32, sum_) / group_size(WORLD)
m_ = Update(m, m * b1 + (1 - b1) * avg)
v_ = Update(v, v * b2 + (1 - b2) * avg * avg)
m1 = m_ / (1 - Pow(b1, t))
v1 = v_ / (1 - Pow(b2, t))
p_ = Update(p, p - lr * m1 / (Sqrt(v1) + eps))
ph_ = Update(ph, Cast(f16, p_))
program = Execute("adam", [g, p, ph, m, v, lr, b1, b2, t, eps], [ph_])
