"""Constraints on the output, from which the engine builds its grammar."""
