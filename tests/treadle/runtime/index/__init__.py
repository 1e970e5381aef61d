"""Plans of arrays that run tile by tile."""
