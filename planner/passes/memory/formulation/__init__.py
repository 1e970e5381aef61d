"""MONeT's 0-1 program, written for a solver and read back."""
