"""Sparse gradients at run time."""
