"""Compares ``proto/`` with the last release, as buf does: nothing that clients use may go, move or change its type.

``--release`` takes what is there now as the release: do it when a version is published. The rules are in
``proto/buf.yaml``. protoc reads the files, since buf would fetch those of Google from its registry.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from scripts.protobuf import compiling

RELEASED = compiling.PROTO / "released.binpb"
"""The descriptors of the last release."""
_RULES = compiling.PROTO / "buf.yaml"
_BUF = str(Path(sys.executable).with_name("buf"))


def main() -> int:
    if "--release" in sys.argv[1:]:
        RELEASED.write_bytes(compiling.descriptors(compiling.on_disk()).SerializeToString(deterministic=True))
        print(f"wrote {RELEASED.relative_to(compiling.PROTO.parent)}")
        return 0
    found = problems(compiling.descriptors(compiling.on_disk(), with_comments=True), RELEASED)
    print("".join(f"{one}\n" for one in found), end="")
    return 1 if found else 0


def problems(now: FileDescriptorSet, released: Path) -> list[str]:
    """What buf finds wrong: what breaks clients of the release, and what is not written as protobuf is."""
    with tempfile.NamedTemporaryFile(suffix=".binpb") as file:
        file.write(now.SerializeToString())
        file.flush()
        return [*_buf("lint", file.name), *_buf("breaking", file.name, "--against", str(released))]


def _buf(*arguments: str) -> list[str]:
    command = [_BUF, *arguments, "--config", str(_RULES)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 100):  # 100: there are findings
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
