"""Tokens to the experts on other ranks: rows in the order of their experts, scaled by their gates, exchanged."""

from treadle.fusion import *

T, H = dims("T", "H")
x = Tensor("x", f16, [T, H], Local)
order = Tensor("order", i32, [T], Local)
gate = Tensor("gate", f16, [T, 1], Local)
rows = Permute(x, order)
weighted = rows * gate
out = AllToAll(weighted)
program = Execute("moe", [x, order, gate], [out])
