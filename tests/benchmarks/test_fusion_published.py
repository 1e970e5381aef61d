"""The comparison with CoCoNet's figures: hits stay hits, and a miss is reported as one."""

from __future__ import annotations

import pytest

from benchmarks.fusion.published import CLOSE, Published, cluster, hand_over, memory, tails


def test_memory_of_bert():
    assert [figure.ours for figure in memory()] == pytest.approx([62.4, 15.8, 31.3], abs=0.06)


def test_tails_are_within_a_tenth():
    assert all(abs(figure.ratio - 1) <= CLOSE for figure in tails(cluster()))


def test_the_hand_over_is_ordered_as_published():
    ours = [figure.ours for figure in hand_over(cluster())]
    assert ours == sorted(ours, reverse=True)
    assert ours[-1] > 1.5


@pytest.mark.parametrize(("ours", "ratio", "said"), [(1.3, 1, "yes"), (1.62, 1.08, "yes"), (0.8, 0.8, "MISSED")])
def test_ratio_to_the_near_end_of_a_range(ours, ratio, said):
    figure = Published("any", 1.0, 1.5, ours)
    assert figure.ratio == pytest.approx(ratio)
    assert figure.row()["within 10%"] == said
