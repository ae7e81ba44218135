"""Client protocols: requests to conversations, events to client chunks and answers. Import a protocol's own module."""
