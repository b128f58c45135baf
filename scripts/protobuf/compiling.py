"""protoc: descriptors and Python stubs of .proto files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import grpc_tools
from google.api import annotations_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from scripts.protobuf.files import PACKAGE

PROTO = Path(__file__).resolve().parents[2] / "proto"
FOLDER = Path(*PACKAGE.split("."))
"""Of the .proto files in ``proto``, and of the stubs in the repository."""
_KNOWN = [Path(grpc_tools.__file__).parent / "_proto", Path(annotations_pb2.__file__).parents[2]]
"""Where the files of Google are that ours import."""

Sources = Mapping[Path, bytes]
"""Path from ``proto`` -> text."""


def on_disk() -> dict[Path, bytes]:
    """The files as they are."""
    return {path.relative_to(PROTO): path.read_bytes() for path in sorted((PROTO / FOLDER).glob("*.proto"))}


def descriptors(sources: Sources, *, with_comments: bool = False) -> FileDescriptorSet:
    """The files and all that they import."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "set.binpb"
        more = ["--include_source_info"] if with_comments else []
        _run(Path(name), sources, [f"--descriptor_set_out={out}", "--include_imports", *more])
        return FileDescriptorSet.FromString(out.read_bytes())


def stubs(sources: Sources) -> dict[Path, bytes]:
    """Python modules for messages and services, with their types. Path from the root of the repository -> text."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        out.mkdir()
        _run(Path(name), sources, [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"])
        with_service = {path.stem for path, text in sources.items() if b"\nservice " in text}
        made = {path.relative_to(out): path.read_bytes() for path in sorted((out / FOLDER).iterdir())}
        return {
            path: text
            for path, text in made.items()
            if not path.stem.endswith("_grpc") or path.stem.removesuffix("_pb2_grpc") in with_service
        }


def _run(directory: Path, sources: Sources, options: list[str]) -> None:
    base = directory / "proto"
    for path, text in sources.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_bytes(text)
    include = [f"--proto_path={path}" for path in (base, *_KNOWN)]
    # In a process of its own: in one process with OR-Tools, which has another protobuf inside, it breaks the memory.
    protoc = [sys.executable, "-m", "grpc_tools.protoc", *include, *options, *map(str, sources)]
    done = subprocess.run(protoc, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"protoc ended with {done.returncode}: it says above what is wrong")
