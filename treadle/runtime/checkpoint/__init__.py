"""Checkpoints in memory: agents that hold them, what carries them, and how training goes on after a failure."""
