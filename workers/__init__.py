"""What does the work: imports `tasks`, never `api`."""
