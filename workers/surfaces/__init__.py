"""Client protocols: a request to a conversation, events to chunks and responses. Import the module you mean."""
