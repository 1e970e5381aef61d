"""Tests of treadle.codegen.server."""
