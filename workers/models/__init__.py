"""Assets: model files and tokenizers on disk. Import the module you mean."""
