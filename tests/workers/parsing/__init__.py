"""Tests of `workers.parsing`."""
