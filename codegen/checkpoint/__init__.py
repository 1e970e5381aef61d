"""Checkpoint plans as texts that other programs read."""
