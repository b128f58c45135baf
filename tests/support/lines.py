"""Reads files to which a process writes at the same time."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """The lines of the file. Without the last one if its end is not written yet; none if there is no file."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
