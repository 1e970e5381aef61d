"""What to do: pure planning over documents. Imports neither torch nor anything above it."""
