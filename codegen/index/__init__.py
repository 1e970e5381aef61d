"""Index plans as a C++ header with a program that uses it."""
