"""Tests of treadle.planner.passes.index."""
