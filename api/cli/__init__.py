"""The `tokenyard` console script."""
