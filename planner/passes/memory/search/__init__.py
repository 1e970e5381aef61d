"""Which methods work on a problem, in what order and in how many processes."""
