"""Ids of arrays and of their elements: ``a-7`` is an array, ``a-7.3`` its element with index 3.

They are on the wire, as all names in :mod:`gpu_platform.domain.contracts`.
"""

from __future__ import annotations


def element_id(array_id: str, index: int) -> str:
    """The id of the job that is this element of the array."""
    return f"{array_id}.{index}"


def array_of(job_id: str) -> str | None:
    """The array that has this job as an element. None: the job is no element."""
    array_id, dot, index = job_id.rpartition(".")
    return array_id if dot and is_array_id(array_id) and index.isascii() and index.isdecimal() else None


def index_of(job_id: str) -> int:
    """The index of the job in its array. Raises ``ValueError`` if it is no element."""
    if array_of(job_id) is None:
        raise ValueError(f"job {job_id!r} is no element of an array")
    return int(job_id.rpartition(".")[2][:12])


def is_array_id(text: str) -> bool:
    """True for the id of an array, false for that of a job."""
    return text.startswith("a-") and "." not in text
