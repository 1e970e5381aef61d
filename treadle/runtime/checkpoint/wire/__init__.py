"""The compiled memory of an agent and the compiled sender of a rank: pieces of states over TCP, or in shared memory."""
