"""Engines, which turn prompt token ids into generated token ids. Import the module you mean."""
