"""Ways to find memory plans, one idea in each file."""
