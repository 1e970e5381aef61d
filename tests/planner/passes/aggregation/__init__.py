"""Tests of treadle.planner.passes.sparse."""
