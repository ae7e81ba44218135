"""Conversations to prompt token ids. Import the module you mean."""
