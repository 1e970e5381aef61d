"""Tests of treadle.server."""
