"""Tests of treadle.passes.index."""
