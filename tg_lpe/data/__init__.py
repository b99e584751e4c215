"""PyTorch Geometric's in-memory storage, read and written in bulk."""
