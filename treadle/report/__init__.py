"""Plans and measurements as one self-contained page."""
