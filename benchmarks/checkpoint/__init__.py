"""Checkpoints in memory, measured: faults in a lab, iterations, and recoveries."""
