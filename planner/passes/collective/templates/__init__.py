"""Algorithms with a name: the schedules that everyone compares with, one file each."""
