"""Tilings: how far methods are from the least cost, what programs move, a transformer next to placements by hand."""
