"""How the ranks of a job exchange messages: compiled code over shared memory on one host, over TCP between hosts."""
