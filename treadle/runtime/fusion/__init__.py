"""Executes schedules of fused computation and communication: on fibers, on processes, on GPUs."""
