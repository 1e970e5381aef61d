"""Benchmarks of the collective pass: how good plans are, how long they take to make, and how they run."""
