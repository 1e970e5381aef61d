"""How chunks travel in a collective, guided by a sketch (TACCL)."""
