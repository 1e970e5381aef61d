"""Tests of treadle.planner.passes.server."""
