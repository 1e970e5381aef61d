"""Code generation of compression plans."""
