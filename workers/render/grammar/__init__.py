"""What an output must look like, for the engine's grammar."""
