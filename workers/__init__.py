"""One file per process: wiring only."""
