"""Tests of treadle.codegen.tiling."""
