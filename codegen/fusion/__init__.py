"""Generated kernels of programs of computation and collectives."""
