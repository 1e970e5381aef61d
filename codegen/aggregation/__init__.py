"""Aggregation plans as collective programs."""
