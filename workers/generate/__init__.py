"""The generate stage: prompt token ids to generated token ids."""
