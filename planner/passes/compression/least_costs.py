"""Costs below those of a problem for which one large group is never dearer than several small ones.

A curve f is kept if f(x) / x never grows, else replaced by the steepest line through 0 below it; the same holds of
payloads, whose words and kept elements make steps, on shards of at least some elements. Packing costs nothing. Of such
curves all sums and compositions are again such, so that for every option, with f its time on one resource,

    f(n_1) + f(n_2) + ... >= f(n_1 + n_2 + ...)

up to the rounding of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from msgspec.structs import replace

from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve, Point, interpolated
from treadle.planner.machine.compressors import QSGD_BUCKET, Compressor, compressor
from treadle.planner.passes.compression.problem import CompressionProblem

FAR = 1 << 40
"""Elements up to which a line is written as a curve; it goes on beyond."""


def least_costs(problem: CompressionProblem, shard: int) -> CompressionProblem:
    """The problem with such costs, for payloads of at least `shard` elements each."""
    return replace(
        problem,
        pack=None,
        planned=None if problem.planned is None else below(problem.planned),
        issue=None if problem.issue is None else below(problem.issue),
        routines=tuple(replace(routine, curve=below(routine.curve)) for routine in problem.routines),
        compressors=tuple(_compressor(cost, shard) for cost in problem.compressors),
    )


def below(curve: Curve) -> Curve:
    """The curve itself if its time for each of a size never grows, else the steepest line through 0 below it."""
    points = curve.points
    if all(y * (far - x) >= (top - y) * x for (x, y), (far, top) in pairwise(points)):
        return curve
    (x, y), (far, top) = points[-2:]
    rates = [Fraction(y, max(1, x)) for x, y in points]
    return _line(min(*rates, Fraction(top - y, far - x)))


def _line(rate: Fraction) -> Curve:
    return Curve(points=((0, 0), (FAR, int(rate * FAR))))


def _compressor(cost: CompressorCost, shard: int) -> CompressorCost:
    wire = least_wire(compressor(cost.name), shard) if cost.wire is None else below(cost.wire)
    return replace(cost, encode=below(cost.encode), decode=_decode(cost.decode), wire=wire)


def _decode(curves: Sequence[DecodeCurve]) -> tuple[DecodeCurve, ...]:
    """By a step at each known number of pieces and none beyond; nothing where more pieces can take less."""
    if len(curves) < 2:
        return tuple(replace(curve, points=below(Curve(points=curve.points)).points) for curve in curves)
    sizes = sorted({x for curve in curves for x, _ in curve.points})
    sizes.append(2 * sizes[-1])
    for one, other in pairwise(curves):
        if any(interpolated(one.points, x) > interpolated(other.points, x) for x in sizes):
            return ()
    lines = [below(Curve(points=curve.points)).points for curve in curves]
    found = [DecodeCurve(pieces=curves[0].pieces, points=lines[0])]
    for curve, before, points in zip(curves[1:], lines, lines[1:], strict=False):
        if curve.pieces - 1 > found[-1].pieces:
            found.append(DecodeCurve(pieces=curve.pieces - 1, points=before))
        found.append(DecodeCurve(pieces=curve.pieces, points=points))
    return (*found, DecodeCurve(pieces=curves[-1].pieces + 1, points=lines[-1]))


def least_wire(known: Compressor, shard: int) -> Curve:
    """Bytes below those of a payload of `shard` elements or more."""
    match known.algorithm.name:
        case "randomk":
            return _line(4 * _kept(known, shard))
        case "topk" | "dgc":
            return _line(_kept(known, shard) * (32 + _index_bits(known, shard)) / 8)
        case "efsignsgd" | "onebit":
            return _line(Fraction(1, 8))
        case "qsgd" | "int8":
            return _line(1 + Fraction(4, QSGD_BUCKET))
        case "fp16" | "bf16":
            return _line(Fraction(2))
        case _:
            # rows + columns >= 2 sqrt(elements), which is concave: its chords are below it
            rank = int(known.parameter)
            factor = 8 * (rank if shard >= rank * rank else 1)
            points: list[Point] = [(0, 0), *((1 << 2 * power, factor << power) for power in range(20))]
            return Curve(points=tuple(points))


def _kept(known: Compressor, shard: int) -> Fraction:
    """Elements kept of each: of x all but less than one of x * ratio, and at least one."""
    ratio = Fraction(known.parameter)
    return max(ratio / 2, ratio - Fraction(1, shard))


def _index_bits(known: Compressor, shard: int) -> Fraction:
    """Bits of an index: with x elements for each that is kept, low = floor(log2(x)) and those of low + 1 + x / 2^low,
    which grows with x, and x >= 1 / ratio once at least one element is kept by the ratio."""
    ratio = Fraction(known.parameter)
    each = 1 / ratio if ratio * shard >= 1 else Fraction(1)
    low = int(each).bit_length() - 1
    return low + 1 + each / (1 << low)
