"""Checks a directory of the host that a job names as its root file system. Standard library only: it is a step."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpu_platform.node.isolation import workdirs
from gpu_platform.node.processes.preflight import is_closed


def check(container: str, private: Sequence[str]) -> dict[str, str]:
    """``{"path": without links}``, or ``{"wrong": why it cannot be used}``. ``private``: directories of the platform.

    It is no directory of the system or of the platform. The jail opens it with the account's rights, so nothing is said
    about places that only some accounts see.
    """
    found = os.path.realpath(container)
    wrong = workdirs.is_system(found) or workdirs.is_below(found, workdirs.HOME_OF_ROOT)
    wrong = wrong or any(workdirs.is_below(found, one) or workdirs.is_below(one, found) for one in private)
    if wrong:
        return {"wrong": "it is a directory of the system or of the platform"}
    if not is_closed(found) and not os.path.isdir(found):
        return {"wrong": "there is no such directory"}
    return {"path": found}
