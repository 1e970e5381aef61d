"""Which gradients to compress, where, in which groups, and when not to."""
