"""Tests of treadle.codegen.index."""
