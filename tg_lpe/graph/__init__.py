"""The graph as an operator."""
