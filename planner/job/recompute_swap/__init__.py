"""Swapping and recomputation planned together: above both passes."""
