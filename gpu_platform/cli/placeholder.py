"""The placeholder: the command of a job that ``gpu-platform run`` makes. It keeps the job's place for one session.

Placeholder and session know each other by a pipe with a name (fifo(7)) in the rank's temporary directory: the session
holds it open while it lives, and writes the command's exit code into it. So the job ends at once when the command has
ended, with its exit code; when the session was ended (nobody was attached for too long, or the node worker restarted);
and when no session began at all. All three hold if the client is gone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DEFAULT_IDLE_S = 15 * 60
NAME = "gpu-platform-run"
"""``$0`` of the placeholder. Its other arguments are the idle time in seconds, and the command."""
_IDLE = re.compile("[0-9]{1,9}")
UNATTENDED_CODE, LOST_CODE = 124, 129
"""Exit codes of the job: nobody attached in time, as timeout(1); its session was ended, as after SIGHUP."""
_DIRECTORY = "d=${TMPDIR:-/tmp}/gpu-platform-run.$GPU_PLATFORM_JOB_ID.$GPU_PLATFORM_ATTEMPT"
# It reads to the end, and waits a little: the session must have ended before its rank does, or its code is lost.
_PLACEHOLDER = f"""{_DIRECTORY}
umask 077
mkdir "$d" && mkfifo "$d/end" || exit 1
trap 'rm -rf "$d"' EXIT
trap 'exit 143' TERM
( sleep "$1"; [ -e "$d/begun" ] || echo unattended > "$d/end" ) &
{{ read -r code; while read -r rest; do :; done; }} < "$d/end"
sleep 0.1
case $code in
unattended) echo "nobody attached within $1 s, so the job ends"; exit {UNATTENDED_CODE};;
"") echo "the session was ended: nobody was attached for $1 s, or the host's node worker restarted"; exit {LOST_CODE};;
esac
exit "$code"
"""
_SESSION = f"""{_DIRECTORY}
tries=0
until [ -p "$d/end" ]; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || {{ echo "the job holds no place for a session: it is ending" >&2; exit 69; }}
  sleep 0.1
done
mkdir "$d/begun" 2>/dev/null || {{ echo "the job has its session already: attach to that one" >&2; exit 75; }}
exec 9> "$d/end"
trap : INT QUIT
"$@" 9>&-
code=$?
echo $code >&9
exit $code
"""


def placeholder(command: Sequence[str], idle_s: int) -> list[str]:
    """The command of a job that waits for a session with ``command``."""
    return ["sh", "-c", _PLACEHOLDER, NAME, str(idle_s), *command]


def command_of(command: Sequence[str]) -> tuple[list[str], int] | None:
    """The command and the idle time of a job that :func:`placeholder` made. None: it is another job, also one that only
    looks like it: another script would run unseen."""
    if len(command) < 6 or list(command[:4]) != ["sh", "-c", _PLACEHOLDER, NAME] or not _IDLE.fullmatch(command[4]):
        return None
    return list(command[5:]), int(command[4])


def session_command(command: Sequence[str]) -> list[str]:
    """The session that runs ``command`` in the place that a placeholder keeps."""
    return ["sh", "-c", _SESSION, NAME, *command]


def shown_command(command: Sequence[str]) -> Sequence[str]:
    """The command that people know: that of a placeholder or its session, else ``command`` itself."""
    if (found := command_of(command)) is not None:
        return found[0]
    return command[4:] if len(command) > 4 and list(command[:4]) == ["sh", "-c", _SESSION, NAME] else command
