"""The checkpoint pass on this machine."""
