"""Programs of computation and collectives: Python that runs, and text that treadle reads without running it."""
