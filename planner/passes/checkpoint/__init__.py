"""The checkpoint pass: copies of the state of every machine in the memory of others, sent while links are idle."""
