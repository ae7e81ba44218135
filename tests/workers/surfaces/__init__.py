"""The client protocols."""
