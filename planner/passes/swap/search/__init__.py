"""The genetic search for an order and a pool (SwapAdvisor, sections 4.4 and 4.5), and its initial individuals."""
