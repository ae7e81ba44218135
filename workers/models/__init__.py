"""Models on disk: their files, tokenizers and profiles. Import the module you mean."""
