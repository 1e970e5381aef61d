"""Tests of treadle.passes.sparse."""
