"""The contract in which the api and the workers meet; it imports neither of them."""
