"""The Celery application and its messages."""
