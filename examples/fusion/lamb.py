"""A step of LAMB in mixed precision, data parallel: each of the tensors in N has norms of its own (CoCoNet, section 6).

`decay` is the weight decay; `t` counts from 1.
"""

from treadle.fusion import *

N = dims("N")
g = Tensor("g", f16, [N], Local)
p = Tensor("p", f32, [N], Replicated)
ph = Tensor("ph", f16, [N], Replicated)
m = Tensor("m", f32, [N], Replicated)
v = Tensor("v", f32, [N], Replicated)
lr, b1, b2, t, eps, decay = Scalars("lr b1 b2 t eps decay", f32)
sum_ = AllReduce("+", g)
avg = Cast(f32, sum_) / group_size(WORLD)
m_ = Update(m, m * b1 + (1 - b1) * avg)
v_ = Update(v, v * b2 + (1 - b2) * avg * avg)
m1 = m_ / (1 - Pow(b1, t))
v1 = v_ / (1 - Pow(b2, t))
u = m1 / (Sqrt(v1) + eps) + decay * p
norm_p = Norm(p, per="tensor")
norm_u = Norm(u, per="tensor")
p_ = Update(p, p - lr * (norm_p / norm_u) * u)
ph_ = Update(ph, Cast(f16, p_))
program = Execute("lamb", [g, p, ph, m, v, lr, b1, b2, t, eps, decay], [ph_])
