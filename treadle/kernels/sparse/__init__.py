"""Kernels of sparse gradients: hashing, extraction, sums in the order of workers, bitmaps."""
