"""Fusion: computation and collectives in one program, its schedules, their prices (CoCoNet)."""
