"""Recorded outputs of every format, with the events that the family's own template says they mean."""
