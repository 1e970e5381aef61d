"""Sparse gradients: which parts of them travel to whom, and in what form (Zen)."""
