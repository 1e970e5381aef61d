"""`treadle.fit`: capture, plan, verify and train a model within a memory budget, in one call."""
