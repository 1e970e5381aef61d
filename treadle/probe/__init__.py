"""Hardware profiles from machines: detect, measure, import, draw."""
