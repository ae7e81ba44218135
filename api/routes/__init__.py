"""The HTTP routes, one module for each client protocol."""
