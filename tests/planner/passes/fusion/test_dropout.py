"""Dropout's random numbers: the published vectors of Philox, and what schedules may not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.dropout import kept, op_key, philox, scale, threshold


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_vectors(counter, key, words):
    """Random123, kat_vectors: philox4x32 with 10 rounds."""
    first, second = (int(word, 16) for word in key.split())
    numbers = np.array([int(word, 16) for word in counter.split()], np.uint32)
    assert [f"{word:08x}" for word in philox(numbers, (first, second))] == words.split()


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_every_element_by_itself(indices, seed, step):
    """An element's fate needs its own index alone: word index % 4 of the counter (index // 4, step)."""
    mask = kept(np.array(indices), 0.25, "k", seed=seed, step=step)
    for index, stays in zip(indices, mask, strict=True):
        words = [index // 4 & 0xFFFFFFFF, index // 4 >> 32, step & 0xFFFFFFFF, step >> 32]
        word = philox(np.array(words, np.uint32), (seed, op_key("k")))[index % 4]
        assert stays == (int(word) >= 2**30)


def test_share_of_survivors_and_their_scale():
    mask = kept(np.arange(100_000), 0.1, "k", seed=7, step=3)
    assert abs(mask.mean() - 0.9) < 0.005
    assert threshold(0.5) == 2**31
    assert scale(0.5) == 2
    assert kept(np.arange(1000), 0, "k", seed=7, step=3).all()


@given(st.integers(0, 10_000), st.integers(0, 2**32 - 1))
def test_an_element_is_dropped_when_its_word_is_below_the_threshold(index, seed):
    words = philox(np.array([index // 4, 0, 0, 0], np.uint32), (seed, op_key("k")))
    word = int(words[index % 4])
    for p, stays in [(word / 2**32, True), ((word + 1) / 2**32, False)]:
        assert kept(np.array([index]), p, "k", seed=seed, step=0).tolist() == [stays]


def test_other_seeds_steps_keys_and_ranks_are_other_masks():
    base = {"seed": 1, "step": 1, "rank": 0}
    masks = [kept(np.arange(256), 0.5, key, **{**base, **other}).tobytes() for key, other in CHANGES]
    assert len(set(masks)) == len(masks)


CHANGES = [
    *(("a", {}), ("b", {}), ("a", {"seed": 2}), ("a", {"step": 2}), ("a", {"step": 2**32 + 1}), ("a", {"rank": 1})),
]


@pytest.mark.parametrize(("seed", "step"), [(-1, 0), (2**32, 0), (0, -1), (0, 2**64)])
def test_seeds_and_steps_that_do_not_fit(seed, step):
    with pytest.raises(InputError, match="found seed"):
        kept(np.arange(4), 0.5, "k", seed=seed, step=step)
