"""Reads the file that a job of a pipeline wrote as its output. Standard library only: it is a step."""

from __future__ import annotations

import json
import os
import stat
from typing import Any


def read_output(directory: str, name: str, most_bytes: int) -> dict[str, Any]:
    """``{"text": JSON}`` or ``{"problem": why not}``. Empty: there is no such file.

    The program may have made anything of its directory: links are not followed, and only a file is read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        opened = os.open(directory, flags | os.O_DIRECTORY)
    except OSError as error:
        return {"problem": f"its directory {directory} cannot be opened: {error.strerror}"}
    try:
        file = os.open(name, flags | os.O_NONBLOCK, dir_fd=opened)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {"problem": f"its output cannot be opened: {error.strerror}"}
    finally:
        os.close(opened)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        return {"problem": "its output is no file"}
    with open(file, "rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        size = max(status.st_size, len(content))
        problem = f"its output has {size} bytes and is larger than {most_bytes} bytes: write large results into files"
        return {"problem": problem}
    try:
        # Written anew: no NaN, and nothing that JSON does not have.
        return {"text": json.dumps(json.loads(content), allow_nan=False)}
    except (ValueError, RecursionError) as error:
        return {"problem": f"its output is not JSON: {error}"}
