"""The formats of the model families, one small table each; `workers.parsing.registry` maps names to them."""
