"""What to keep and what to recompute, under a budget in bytes (MONeT)."""
