"""Kernels of a parameter server: sums of gradients, steps of optimizers, number types."""
