"""The tree of options has the size that the paper of Espresso gives, and nothing outside its rules."""

from __future__ import annotations

import pytest

from treadle.planner.passes.compression.options import compressions, options, summed

BOTH, ONE = ("device", "host"), ("device",)


@pytest.mark.parametrize(
    ("places", "flat", "hierarchical"), [(BOTH, 63, 4278), (ONE, 12, 162), ((), 3, 6)], ids=["two", "one", "none"]
)
def test_the_tree_has_4341_options_174_on_one_place_and_9_that_compress_nothing(
    places: tuple[str, ...], flat: int, hierarchical: int
) -> None:
    found = options(places, False), options(places, True)
    assert (len(set(found[0])), len(set(found[1]))) == (len(found[0]), len(found[1])) == (flat, hierarchical)


def test_options_by_their_number_of_encodings() -> None:
    everything = options(BOTH, False) + options(BOTH, True)
    counts = [sum(compressions(option) == number for option in everything) for number in range(6)]
    assert counts == [9, 236, 1152, 1920, 1024, 0]


def test_encodings_and_decodings_alternate_and_payloads_are_not_added_up() -> None:
    for option in options(BOTH, False) + options(BOTH, True):
        packed = False
        for step in option:
            word = step.partition("@")[0]
            if word in ("compress", "decompress"):
                assert packed == (word == "decompress"), option
                packed = not packed
            else:
                raw_only = word in ("allreduce", "reduce-scatter", "reduce")
                assert not (packed and raw_only), option
                assert packed or word not in ("alltoall", "gather"), option
        assert not packed


def test_summed_options_are_no_part_of_the_tree() -> None:
    for hierarchical in (False, True):
        found = summed(BOTH, hierarchical)
        assert len(set(found)) == 4
        assert not set(found) & set(options(BOTH, hierarchical))
