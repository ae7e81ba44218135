"""How clients talk: imports `tasks`, never `workers`."""
