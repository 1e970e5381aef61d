"""Error bounds of a correct kernel against the reference interpreter: an interval for every element.

Each value is bounded by [low, high] in float64, whatever order its sums take (running error analysis: Higham, Accuracy
and Stability of Numerical Algorithms, section 3.3; the ranges of functions over intervals: Moore, Interval Analysis).
With u the rounding unit of a dtype, u' that of what it is computed in and |x| the largest magnitude in an interval:

    pointwise           the range of the function, u |result| wider; functions of a library also ULPS u'
    sums of n terms     the sum of the intervals, ((1 + u')^(n - 1) - 1) sum |x| + u |result| wider
    sums over n ranks   the same with u for u', since partial sums travel in the dtype
    moves               the intervals, moved

A function that jumps (a comparison, a division by what may be 0, a cast to integers) is undecided where the interval of
its operand holds the jump: two correct kernels may end on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import expm1, log1p, prod

import numpy as np

from treadle.planner.machine.dtypes import FLOATS, Dtype
from treadle.planner.passes.fusion.arithmetic import FUNCTIONS, Array, neutral, wide
from treadle.planner.passes.fusion.dropout import scale
from treadle.planner.passes.fusion.evaluate import Run, multiplied
from treadle.planner.passes.fusion.operations import COMPARISONS, FLOAT_UNARY, LOGIC, operation
from treadle.planner.passes.fusion.program import Bindings, Node, Operand, Program, TensorType

ULPS = 8
"""Error of exp, log, tanh, erf, pow and rsqrt, in rounding units of what they are computed in: single precision
functions state at most 4 units in the last place (CUDA C++ Programming Guide, Mathematical Functions)."""
UNIT: dict[Dtype, float] = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-51}
"""Largest relative error of one rounding; of f64 four of them, for the intervals are kept in f64 themselves."""
SUM_UNIT: dict[Dtype, float] = {"f16": 2.0**-23, "bf16": 2.0**-23, "f32": 2.0**-24, "f64": 2.0**-51}
"""Largest relative error of one sum in a register: f32 for 16 bits, where tensor cores truncate instead of rounding."""
LEAST: dict[Dtype, float] = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}
"""Smallest positive values: the absolute error of a rounding near 0."""
LARGEST: dict[Dtype, float] = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120, "f32": 2.0**128 - 2.0**104, "f64": np.inf}
"""Largest finite values."""
LIBRARY = (*FLOAT_UNARY, "Pow")
LOWEST = {"GeLU": (-0.7517915, -0.1699712), "SiLU": (-1.2784645, -0.2784646)}
"""Where functions that fall and then rise are least, and what they are there, rounded down."""
Pair = tuple[Array, Array]
"""Least and greatest values."""


@dataclass(frozen=True)
class Undecided:
    """`count` elements of an operation, in the expression of `name`, whose operands' intervals hold a jump of it."""

    name: str
    op: str
    count: int
    size: int

    def __str__(self) -> str:
        return f"{self.op} in {self.name}: {self.count:,} of {self.size:,} elements are within rounding of a jump"


@dataclass(frozen=True)
class Intervals:
    """Bounds of every value by name, as arrays [groups, ranks, *global shape] of float64, or of the value's own
    integers; both are NaN where a right kernel has NaN, and -inf and inf where it may have anything."""

    low: Mapping[str, Array]
    high: Mapping[str, Array]
    undecided: tuple[Undecided, ...]


def intervals(
    program: Program, bindings: Bindings, values: Mapping[str, Array], *, seed: int = 0, step: int = 0
) -> Intervals:
    """Intervals around the `values` that `evaluate` found for the same seed and step."""
    return _Widening(program, bindings, values, seed, step).all()


class _Widening:
    """Two evaluations side by side in float64, of all lower and of all upper ends."""

    def __init__(self, program: Program, bindings: Bindings, values: Mapping[str, Array], seed: int, step: int) -> None:
        self.program, self.values, self.ranks = program, values, bindings.ranks
        double = _in_doubles(program)
        self.low, self.high = Run(double, bindings, seed, step, {}), Run(double, bindings, seed, step, {})
        self.double = double.by_name
        self.undecided: list[Undecided] = []

    def all(self) -> Intervals:
        for value in self.program.inputs:
            self._keep(value.name, (self.values[value.name], self.values[value.name]))
        with np.errstate(all="ignore"):
            for node in self.program.nodes:
                self._keep(node.name, self._node(node))
        return Intervals(self.low.values, self.high.values, tuple(self.undecided))

    def _keep(self, name: str, pair: Pair) -> None:
        of = self.double[name].type
        low, high = pair
        if of.dtype in FLOATS:
            unknown = (np.isnan(low) | np.isnan(high)) & ~np.isnan(np.asarray(self.values[name], np.float64))
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
        self.low.keep_value(name, of, low)
        self.high.keep_value(name, of, high)

    def _node(self, node: Node) -> Pair:
        of, double = self.program.by_name[node.name].type, self.double[node.name]
        assert isinstance(double, Node)
        kind = operation(node.op).kind
        if node.op == "Permute":
            return self._permuted(node, double)
        if kind in ("view", "transfer") or node.op in ("AllGather", "Broadcast", "AllToAll", "Update"):
            return self.low.node(double), self.high.node(double)
        if node.op == "GroupSize":
            return self.values[node.name], self.values[node.name]
        if of.dtype not in FLOATS:
            return self._whole(node, double)
        if kind == "collective":
            return self._combined(node, double)
        if kind == "reduction":
            return self._reduced(node, double)
        if kind == "layer":
            return self._multiplied(node, double)
        return self._pointwise(node, double)

    def _operands(self, node: Node) -> list[Pair]:
        return list(zip(self.low.aligned(node), self.high.aligned(node), strict=True))

    def _jumps(self, node: Node, where: Array, operands: list[Pair]) -> None:
        """Note elements where a jump lies inside of the intervals, unless they are unbounded: that was noted before."""
        known = np.ones(1, bool)
        for low, high in operands:
            known = known & ~(np.isneginf(low) & np.isposinf(high))
        there = self.low.there(node.type)
        found = (np.broadcast_to(where & known, there.shape) & there).any(axis=(0, 1))
        if count := int(found.sum()):
            self.undecided.append(Undecided(self._named(node), node.op, count, found.size))

    def _named(self, node: Node) -> str:
        """The named value that an anonymous operation is part of."""
        while node.anonymous and self.program.readers[node.name]:
            node = self.program.readers[node.name][0]
        return node.name

    # Integers and truth values.

    def _whole(self, node: Node, double: Node) -> Pair:
        """What is decided is what the interpreter has, all else anything between the least and the greatest."""
        value, shape = self.values[node.name], self.values[node.name].shape
        if operation(node.op).kind != "pointwise":
            operands = [(self.low.values[name], self.high.values[name]) for name in node.reads]
            undecided = np.full(shape, any(bool((low != high).any()) for low, high in operands))
        elif node.op == "Where":
            return self._chosen(self._operands(double))
        else:
            operands = self._operands(double)
            undecided = np.broadcast_to(self._straddling(node, operands), shape)
            if node.op in COMPARISONS or (node.op == "Cast" and self._floating(node)):
                self._jumps(node, undecided, operands)
        if node.op == "Cast" and node.type.dtype != "bool":
            ends = (np.where(undecided, np.trunc(end), value).astype(value.dtype) for end in operands[0])
            low, high = (np.broadcast_to(end, shape) for end in ends)
            return low, high
        least, most = (
            (False, True) if node.type.dtype == "bool" else (neutral(op, node.type.dtype) for op in ("max", "min"))
        )
        return np.where(undecided, value.dtype.type(least), value), np.where(undecided, value.dtype.type(most), value)

    def _floating(self, node: Node) -> bool:
        return any(self.program.by_name[name].type.dtype in FLOATS for name in node.reads)

    def _straddling(self, node: Node, operands: list[Pair]) -> Array:
        """Where two values of the operands' intervals give different results."""
        if node.op in COMPARISONS:
            (a, b), (c, d) = operands
            if node.op in ("Lt", "Ge"):
                return np.asarray((c <= b) & (a < d))
            if node.op in ("Le", "Gt"):
                return np.asarray((c < b) & (a <= d))
            return np.asarray((c <= b) & (a <= d) & ~((a == b) & (c == d)))
        if node.op == "Cast" and node.type.dtype == "bool":
            low, high = operands[0]
            return np.asarray((low != high) & (low <= 0) & (high >= 0))
        if node.op == "Cast":
            return np.asarray(np.trunc(operands[0][0]) != np.trunc(operands[0][1]))
        found = np.zeros(1, bool)
        for low, high in operands:
            found = found | (low != high)
        if node.op in LOGIC and node.type.dtype == "bool" and node.op != "Xor":
            settles = node.op == "Or"  # a truth that settles it, whatever the other operand is
            for low, high in operands:
                found = found & ~((low == high) & (low == settles))
        return found

    def _chosen(self, operands: list[Pair]) -> Pair:
        (no, yes), (a, b), (c, d) = operands
        low = np.where(no, a, np.where(yes, np.minimum(a, c), c))
        return low, np.where(no, b, np.where(yes, np.maximum(b, d), d))

    def _permuted(self, node: Node, double: Node) -> Pair:
        index = str(node.inputs[1])
        pair = self.low.node(double), self.high.node(double)
        if (self.low.values[index] != self.high.values[index]).any():
            return np.full_like(pair[0], -np.inf), np.full_like(pair[1], np.inf)
        return pair

    # Sums.

    def _largest(self, node: Node) -> Array:
        """The largest magnitude of each element of its first operand, 0 for those that a rank does not have."""
        ends = (np.abs(run.owned(node, 0, 0)) for run in (self.low, self.high))
        return np.maximum(*ends)

    def _combined(self, node: Node, double: Node) -> Pair:
        """Intervals of AllReduce, ReduceScatter and Reduce."""
        low, high = self.low.node(double), self.high.node(double)
        if node.attribute("op") != "+":
            return low, high
        largest = self._largest(double).sum(axis=1, keepdims=True)
        return _widened(low, high, _growth(self.ranks, UNIT[node.type.dtype]) * largest, node.type.dtype, 0)

    def _reduced(self, node: Node, double: Node) -> Pair:
        of, op = double.type, str(node.attribute("op", "+"))
        ends = [run.owned(double, 0, neutral(op, of.dtype)) for run in (self.low, self.high)]
        if node.op == "Norm":
            squares = [end * end for end in ends]
            zero = (ends[0] <= 0) & (ends[1] >= 0)
            ends = [np.where(zero, 0.0, np.minimum(*squares)), np.maximum(*squares)]
        low, high = (run.reduced(double, end) for run, end in zip((self.low, self.high), ends, strict=True))
        if op == "+":
            terms = prod(self.low.extents(self.double[str(node.inputs[0])].type))
            if node.attribute("dim") is not None:
                terms //= max(1, prod(self.low.extents(of)))
            sizes = self.low.reduced(double, np.maximum(*map(np.abs, ends)))
            error = _growth(terms + self.ranks, SUM_UNIT[node.type.dtype]) * sizes
            low, high = low - error, high + error
        if node.op == "Norm":
            low, high = np.sqrt(np.maximum(low, 0.0)), np.sqrt(high)
        return _widened(low, high, 0.0, node.type.dtype, 1 if op == "+" else 0, 1)

    def _multiplied(self, node: Node, double: Node) -> Pair:
        """Intervals of MatMul and Conv2d, by middle and radius of both operands."""
        middles, radii, largest = [], [], []
        for at in (0, 1):
            low, high = (run.owned(double, at, 0) for run in (self.low, self.high))
            middles.append((low + high) / 2)
            radii.append((high - low) / 2)
            largest.append(np.maximum(np.abs(low), np.abs(high)))
        (x, w), (dx, dw), (most, other) = middles, radii, largest
        exact = multiplied(double, x, w)
        extents = self.low.extents(self.double[str(node.inputs[1])].type)
        terms = extents[0] if node.op == "MatMul" else prod(extents[1:])
        error = _growth(terms, SUM_UNIT[node.type.dtype]) * multiplied(double, most, other)
        if dx.any() or dw.any():
            error = error + multiplied(double, np.abs(x), dw) + multiplied(double, dx, other)
        return _widened(exact - error, exact + error, 0.0, node.type.dtype, 1)

    # Elements.

    def _pointwise(self, node: Node, double: Node) -> Pair:
        operands = self._operands(double)
        dtype = node.type.dtype
        if node.op == "Where":
            low, high = self._chosen(operands)
        elif node.op == "Dropout":
            low, high = self._dropped(double, operands[0])
        elif node.op == "Cast":
            low, high = (np.asarray(end, np.float64) for end in operands[0])
        else:
            low, high, jumps = _range(node.op, operands)
            self._jumps(node, jumps, operands)
            low, high = np.where(jumps, -np.inf, low), np.where(jumps, np.inf, high)
        error: Array | float = 0.0
        if node.op == "GeLU":  # 1 + erf loses digits below 0, but never more than those of x
            error = ULPS * SUM_UNIT[dtype] * np.maximum(*map(np.abs, operands[0]))
        exact = node.op in ("Where", "Neg", "Abs", "ReLU", "Max", "Min")
        units = ULPS if node.op in LIBRARY else 1
        shape = self.values[node.name].shape
        low, high = _widened(low, high, error, dtype, 0 if exact else 1, 0 if exact else units)
        return np.broadcast_to(low, shape), np.broadcast_to(high, shape)

    def _dropped(self, node: Node, x: Pair) -> Pair:
        survives = self.low.dropout(node, np.ones_like(x[0])) != 0
        low, high = (np.where(survives, end * scale(float(node.attribute("p") or 0)), 0.0) for end in x)
        return low, high


def _range(op: str, operands: list[Pair]) -> tuple[Array, Array, Array]:
    """Least and greatest of a function of floats, and where it jumps, in intervals."""
    a, b = operands[0]
    never = np.zeros(1, bool)
    if op in ("Add", "Max", "Min"):
        c, d = operands[1]
        return FUNCTIONS[op](a, c), FUNCTIONS[op](b, d), never
    if op == "Sub":
        c, d = operands[1]
        return a - d, b - c, never
    if op in ("Mul", "Div", "Pow"):
        c, d = operands[1]
        jumps = never
        if op == "Div":
            jumps = (c <= 0) & (d >= 0) & (c != d)
        if op == "Pow":
            jumps = (a != b) & (a <= 0) & (b >= 0) & ~((c == d) & (c >= 0) & (c == np.trunc(c)))
        ends = [FUNCTIONS[op](x, y) for x in (a, b) for y in (c, d)]
        low, high = np.minimum.reduce(np.broadcast_arrays(*ends)), np.maximum.reduce(np.broadcast_arrays(*ends))
        if op == "Pow":
            low = np.where((a < 0) & (b > 0), np.minimum(low, 0.0), low)
        return low, high, jumps
    if op == "Neg":
        return -b, -a, never
    if op == "Abs":
        straddles = (a <= 0) & (b >= 0)
        return np.where(straddles, 0.0, np.minimum(np.abs(a), np.abs(b))), np.maximum(np.abs(a), np.abs(b)), never
    one: Callable[[Array], Array] = FUNCTIONS[op]
    if op in LOWEST:
        at, least = LOWEST[op]
        low = np.minimum(one(a), one(b))
        return np.where((a < at) & (b > at), least, low), np.maximum(one(a), one(b)), never
    if op in ("Sqrt", "Log", "Rsqrt"):
        jumps = (a != b) & (a < 0) & (b >= 0) if op != "Rsqrt" else (a != b) & (a <= 0) & (b >= 0)
        return (one(b), one(a), jumps) if op == "Rsqrt" else (one(a), one(b), jumps)
    return one(a), one(b), never


def _widened(
    low: Array, high: Array, error: Array | float, dtype: Dtype, roundings: int, units: int = 0
) -> tuple[Array, Array]:
    """By an absolute `error`, by `units` of what the dtype is computed in, and by `roundings` to the dtype."""
    error = error + roundings * LEAST[dtype]
    share = roundings * UNIT[dtype] + units * SUM_UNIT[dtype]
    low, high = low - error - share * np.abs(low), high + error + share * np.abs(high)
    most = LARGEST[dtype]
    return (
        np.where(low < -most, -np.inf, np.minimum(low, most)),
        np.where(high > most, np.inf, np.maximum(high, -most)),
    )


def _growth(terms: int, unit: float) -> float:
    """The largest error of a sum of `terms` terms, relative to the sum of their magnitudes."""
    return expm1(max(0, terms - 1) * log1p(unit))


def _in_doubles(program: Program) -> Program:
    """The program with its floats in f64; numbers keep what they are rounded to."""

    def doubled(of: TensorType) -> TensorType:
        return replace(of, dtype="f64") if of.dtype in FLOATS else of

    def node(each: Node) -> Node:
        dtype = each.number_dtype(
            {name: program.by_name[name].type.dtype for name in each.inputs if isinstance(name, str)}
        )

        def number(operand: Operand) -> Operand:
            return operand if isinstance(operand, str) else wide(operand, dtype).item()

        return replace(each, inputs=tuple(map(number, each.inputs)), type=doubled(each.type))

    return replace(
        program,
        inputs=tuple(replace(value, type=doubled(value.type)) for value in program.inputs),
        nodes=tuple(map(node, program.nodes)),
    )
