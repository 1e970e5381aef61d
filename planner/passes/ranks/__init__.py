"""Which host is at which place of a collective that is not ours: ring, halving and doubling, trees, BCube, plans."""
