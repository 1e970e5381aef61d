"""From a captured trace to the memory problem."""
