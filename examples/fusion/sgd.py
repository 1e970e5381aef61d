"""A step of plain gradient descent, data parallel (CoCoNet, section 2)."""

from treadle.fusion import *

N = dims("N")
g = Tensor("g", f32, [N], Local)
p = Tensor("p", f32, [N], Replicated)
lr = Scalars("lr", f32)
sum_ = AllReduce("+", g)
p_ = Update(p, p - lr * sum_)
program = Execute("sgd", [g, p, lr], [p_])
