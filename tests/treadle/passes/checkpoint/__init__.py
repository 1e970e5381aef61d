"""Tests of treadle.passes.checkpoint."""
