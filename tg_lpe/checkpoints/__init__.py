"""Files, checkpoints, registries and the zoo."""
