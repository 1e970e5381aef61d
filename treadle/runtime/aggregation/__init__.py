"""Aggregation plans on real processes: sums in two levels, and plans that change while a job runs."""
