"""Iterations under a swap plan: tensors in one arena, copies between it and the host while operators run."""
