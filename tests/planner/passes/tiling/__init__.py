"""Tests of treadle.planner.passes.tiling."""
