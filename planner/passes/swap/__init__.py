"""The swap pass: operator order, memory pool and copies to and from the host, planned together (SwapAdvisor)."""
