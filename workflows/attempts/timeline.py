"""A job's state and what happened to it, for the query ``status`` and the details in the Temporal UI."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from gpu_platform.domain.states import JobState

KEPT_LINES = 200
SHOWN_LINES = 30


class JobTimeline:
    """The job's state and history as markdown lines, which the Temporal UI shows."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.attempt = 0
        """Number of the attempt that new lines belong to."""
        self.lines: list[str] = []
        """Lines in markdown, oldest first."""

    def enter(self, state: JobState, text: str = "") -> None:
        """Set the state of the job, and add a line."""
        self.state = state
        self.note(f"**{state}** {text}".strip())

    def note(self, text: str) -> None:
        """Add a line with the time since the workflow began."""
        since = (workflow.now() - workflow.info().start_time) / timedelta(milliseconds=1)
        self.lines.append(f"`{since:9.0f} ms` attempt {self.attempt}: {text}")
        del self.lines[:-KEPT_LINES]
        workflow.set_current_details("\n".join(f"- {line}" for line in self.lines[-SHOWN_LINES:]))
