"""Execution of sparse plans: the rounds of a scheme over process groups, and the hooks of a model."""
