"""Tests of treadle.planner.passes.checkpoint."""
