"""Methods that find memory plans, one idea in each file."""
