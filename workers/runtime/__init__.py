"""What every worker process runs beneath its tasks: its event loop, its claims, its messages, its signs of life."""
