"""What every worker process runs beneath its tasks."""
