"""Numerical kernels on plain tensors."""
