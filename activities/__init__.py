"""What workflows do to the world: one file per step, each step safe to repeat."""
