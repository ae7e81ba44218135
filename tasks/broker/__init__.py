"""The Celery application and the messages that it carries."""
