"""The compression pass on this machine."""
