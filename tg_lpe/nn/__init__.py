"""Building blocks of encoders and models."""
