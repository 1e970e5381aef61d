"""The server pass: parameters on servers that are sized from their parts, chunk by chunk."""
