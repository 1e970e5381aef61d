"""Code generation of server plans."""
