"""The derender stage: generated token ids to the answer."""
