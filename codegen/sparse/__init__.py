"""Code generation of sparse plans."""
