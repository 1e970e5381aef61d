"""Curves of costs over sizes, and what makes a document of them unsound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.documents.compression_costs import (
    CompressionCosts,
    CompressorCost,
    Curve,
    DecodeCurve,
    RoutineCost,
)


def test_a_curve_is_a_plateau_then_linear_and_goes_on_beyond_its_last_points() -> None:
    curve = Curve(points=((0, 100), (1000, 100), (2000, 200)))
    assert [curve.at(size) for size in (0, 1, 1000, 1500, 2000, 3000)] == [0, 100, 100, 150, 200, 300]
    assert Curve(points=((5, 7),)).at(10**9) == 7


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), min_size=1, max_size=6), st.data())
def test_a_sound_curve_never_falls(points: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = sorted({size for size, _ in points})
    times = sorted(time for _, time in points)[: len(sizes)]
    curve = Curve(points=tuple(zip(sizes, times, strict=True)))
    assert not list(curve.problems_at("$"))
    one, other = sorted(data.draw(st.tuples(st.integers(1, 2 * 10**6), st.integers(1, 2 * 10**6))))
    assert curve.at(one) <= curve.at(other)
    assert all(curve.at(size) == time for size, time in curve.points if size)


def test_decoding_is_interpolated_between_numbers_of_pieces() -> None:
    decode = tuple(DecodeCurve(pieces=n, points=((0, 10 * n), (100, 20 * n))) for n in (1, 3))
    cost = CompressorCost(name="fp16", encode=Curve(points=((1, 1),)), decode=decode)
    assert [cost.decode_ns(100, pieces) for pieces in (1, 2, 3, 5)] == [20, 40, 60, 100]
    single = CompressorCost(name="fp16", encode=Curve(points=((1, 1),)), decode=decode[:1])
    assert single.decode_ns(100, 4) == 80
    assert CompressorCost(name="fp16", encode=Curve(points=((1, 1),)), decode=()).decode_ns(100, 4) == 0


def test_what_is_no_curve_is_named() -> None:
    falling = Curve(points=((1, 5), (2, 4)))
    free = (DecodeCurve(pieces=1, points=((0, 0),)),)
    costs = CompressionCosts(
        version=1,
        name="x",
        compressors=(
            CompressorCost(name="fp16", encode=Curve(points=()), decode=(DecodeCurve(pieces=2, points=((1, 1),)),) * 2),
            CompressorCost(name="fp16", encode=Curve(points=((2, 1), (2, 1))), decode=()),
            CompressorCost(name="mine", encode=Curve(points=((1, 1),)), decode=free, wire=falling),
        ),
        routines=(RoutineCost(routine="allreduce", scope="flat", ranks=2, curve=falling),),
        pack=falling,
    )
    found = {path: expected for path, _, expected in costs.problems()}
    assert list(found) == [
        "$.compressors[0].encode.points",
        "$.compressors[0].decode[1].pieces",
        "$.compressors[1].encode.points[1][0]",
        "$.compressors[1].decode",
        "$.compressors[1]",
        "$.compressors[2].wire.points[1][1]",
        "$.routines[0].curve.points[1][1]",
        "$.pack.points[1][1]",
    ]
    assert found["$.compressors[1].decode"] == "at least one; points [[0, 0]] decode in no time"
    assert found["$.compressors[2].wire.points[1][1]"] == "a payload of at least 5 bytes"
    assert found["$.pack.points[1][1]"] == "a time of at least 5 ns"
