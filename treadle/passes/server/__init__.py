"""The server pass on this machine."""
