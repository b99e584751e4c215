"""Models that use positional encodings."""
