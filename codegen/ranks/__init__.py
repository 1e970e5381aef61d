"""Code generation of orders of hosts: what launchers read."""
