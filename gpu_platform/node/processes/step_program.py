"""The program of a step: reads orders from stdin, one a line, and answers each with a line. See ``step_process``.

An order names a function of :data:`STEPS` and its arguments as JSON. Standard library only, and so is every module that
it names: it starts in 20 ms.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from typing import Any

STEPS = {
    "check_paths": "gpu_platform.node.processes.preflight:check_paths",
    "real_paths": "gpu_platform.node.processes.preflight:real_paths",
    "first_file": "gpu_platform.node.processes.preflight:first_file",
    "which": "gpu_platform.node.processes.preflight:which",
    "root_directory": "gpu_platform.node.environments.root_directory:check",
    "make_directories": "gpu_platform.node.checkpoints.directories:make_shown_directories",
    "missing_directory": "gpu_platform.node.checkpoints.directories:missing",
    "exists": "gpu_platform.node.checkpoints.directories:exists",
    "touch_new": "gpu_platform.node.checkpoints.directories:touch_new",
    "remove": "gpu_platform.node.checkpoints.directories:remove",
    "write_request": "gpu_platform.node.checkpoints.directories:write_request",
    "marks": "gpu_platform.node.checkpoints.step_answers:marks",
    "list_checkpoints": "gpu_platform.node.checkpoints.step_answers:list_job",
    "choose_checkpoint": "gpu_platform.node.checkpoints.step_answers:choose",
    "release_checkpoint": "gpu_platform.node.checkpoints.step_answers:release",
    "is_swept": "gpu_platform.node.checkpoints.step_answers:is_swept",
    "sweep_checkpoints": "gpu_platform.node.checkpoints.step_answers:sweep",
    "read_output": "gpu_platform.node.output_file:read_output",
    "unpack_squashfs": "gpu_platform.node.environments.squashfs:unpack",
}


def main() -> None:
    """Answer until stdin ends."""
    # What a step starts must not write between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
        answers.flush()


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    module, _, name = STEPS[order["step"]].partition(":")
    try:
        return {"result": getattr(importlib.import_module(module), name)(**order["arguments"])}
    except OSError as error:
        number = error.errno or errno.EIO
        path = error.filename if isinstance(error.filename, str) else None
        return {"error": "OSError", "errno": number, "message": error.strerror or str(error), "path": path}
    except MemoryError:
        return {"error": "HostUnavailable", "message": "it needs more memory than a step may have", "details": {}}
    except Exception as error:
        message = getattr(error, "message", None) or f"{type(error).__name__}: {error}"[:500]
        return {"error": type(error).__name__, "message": message, "details": getattr(error, "details", {})}
