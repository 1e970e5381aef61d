"""Tests of treadle.passes.server."""
