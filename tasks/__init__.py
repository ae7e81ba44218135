"""The contract between the API and the workers; it imports neither of them."""
