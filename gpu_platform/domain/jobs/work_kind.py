"""What sort of work a job is: :class:`WorkKind`."""

from __future__ import annotations

from enum import StrEnum


class WorkKind(StrEnum):
    """The kind of work. It decides what a job gets that does not say how it is placed or how urgent it is."""

    TRAINING = "training"
    """A model is trained: long, often a gang, with checkpoints."""
    INFERENCE = "inference"
    """A model answers somebody who waits for it: it should survive the loss of one host."""
    BATCH = "batch"
    """Nobody waits for the end: it may run whenever there is room."""
    INTERACTIVE = "interactive"
    """Somebody works in it, such as a shell or a notebook."""
