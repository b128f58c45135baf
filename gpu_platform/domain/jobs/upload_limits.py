"""What is fixed about archives of uploaded code. It imports nothing: the command line does without pydantic."""

from __future__ import annotations

UPLOAD_PATTERN = r"^[0-9a-f]{64}$"
"""A SHA-256 in hexadecimal."""
CHUNK_BYTES = 1024 * 1024
"""The most bytes of one request: a body of REST has 1 MiB, over gRPC, too."""
MAX_ENTRIES = 50_000
"""The most files, directories and links of one archive: each takes an inode of every host."""
MAX_DEPTH = 64
"""The most parts of a name: a file and the directories it is in. Hosts refuse more (``unpacking.py``)."""
MAX_UPLOAD_MIB = 4096
"""What no setting exceeds."""
