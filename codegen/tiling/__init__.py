"""Tiling plans as programs and configuration of other array libraries."""
