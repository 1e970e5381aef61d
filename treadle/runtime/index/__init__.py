"""What runs learned indexes: the compiled header, and traces of operations on it."""
