"""The families' languages, one small table each. `workers.parsing.registry` says which names they go by."""
