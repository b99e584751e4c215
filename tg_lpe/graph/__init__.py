"""Graphs, and the linear algebra on them."""
