"""From one group of ranks to the next: pipeline parallel, tensor parallel inside a group (CoCoNet, section 4.2)."""

from treadle.fusion import *

B, S, H = dims("B", "S", "H")
y = Tensor("y", f16, [B, S, H], Local, GROUP)
b = Tensor("b", f16, [H], Replicated, GROUP)
r = Tensor("r", f16, [B, S, H], Replicated, GROUP)
sum_ = AllReduce("+", y)
c = Dropout(sum_ + b, p=0.1, key="mlp.dropout") + r
o = Send(c, GroupRank(GROUP + 1, RANK))
program = Execute("pipeline", [y, b, r], [o])
