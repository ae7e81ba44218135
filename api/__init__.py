"""The HTTP API and the console script; imports `tasks`, never `workers`."""
