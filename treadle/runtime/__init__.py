"""Executes artefacts. Takes no decisions."""
