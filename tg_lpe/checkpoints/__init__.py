"""Files, checkpoints and the zoo."""
