"""What the commands do with aggregation plans."""
