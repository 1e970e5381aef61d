"""Tests of treadle.codegen.checkpoint."""
