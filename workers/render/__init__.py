"""The render stage: a request to prompt token ids."""
