"""From a PyTorch model, or a trace that another tool recorded, to the trace document."""
