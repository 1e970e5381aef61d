"""The rows of the table in docs/fusion.md: types of results from those of operands (CoCoNet, section 2.1)."""
