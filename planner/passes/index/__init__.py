"""The index pass: which leaves a learned index of 64-bit keys has, and how large they get."""
