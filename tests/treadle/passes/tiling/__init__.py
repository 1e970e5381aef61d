"""Tests of treadle.passes.tiling."""
