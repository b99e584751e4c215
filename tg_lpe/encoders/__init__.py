"""Positional encodings: every one is an encoder."""
