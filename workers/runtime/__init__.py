"""Shared by all worker processes: the event loop, claims, message delivery, heartbeats, and reports to Flower."""
