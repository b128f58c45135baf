"""The .proto files say what REST says, their numbers stay, and nothing breaks clients of the last release."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from gpu_platform.rpc.methods import rpcs
from gpu_platform.rpc.only_rest import ONLY_REST
from scripts import check_proto, gen_proto
from scripts.protobuf import compiling, numbers
from scripts.protobuf.files import Enum, Field, File, Message, text_of
from service.access.routes import ROUTES

ROOT = Path(__file__).parents[3]
OF_A_PAGE = {
    route for route in ROUTES if not route.split(" ")[1].startswith(("/v1/", "/healthz", "/readyz", "/metrics"))
}
"""Not in the REST description: the dashboard, and the description's own page."""


def test_files_and_stubs_are_up_to_date() -> None:
    stale = [str(path) for path, content in gen_proto.written().items() if (ROOT / path).read_bytes() != content]
    assert stale == [], "run: make proto"


def test_no_other_file_lies_there() -> None:
    written = {str(path) for path in gen_proto.written()}
    there = {*ROOT.glob("proto/gpu_platform/v1/*"), *ROOT.glob("gpu_platform/v1/*_pb2*")}
    assert {str(path.relative_to(ROOT)) for path in there} == written


def test_every_operation_has_an_rpc_or_a_reason() -> None:
    routes = {rpc.route for rpc in rpcs().values()}
    assert routes | set(ONLY_REST) == set(ROUTES) - OF_A_PAGE
    assert not routes & set(ONLY_REST)


def test_the_last_release_is_understood() -> None:
    now = compiling.descriptors(compiling.on_disk(), with_comments=True)
    assert check_proto.problems(now, check_proto.RELEASED) == []


# -- what breaks clients is found ----------------------------------------------------------------


def _message(files: FileDescriptorSet, name: str) -> Any:
    return next(one for file in files.file for one in file.message_type if one.name == name)


def _service(files: FileDescriptorSet, name: str) -> Any:
    return next(one for file in files.file for one in file.service if one.name == name)


def _field_gone(files: FileDescriptorSet) -> None:
    del _message(files, "Job").field[0]


def _field_renumbered(files: FileDescriptorSet) -> None:
    _message(files, "Job").field[0].number = 99


def _field_renamed(files: FileDescriptorSet) -> None:
    _message(files, "Job").field[0].name = "job_id"


def _field_of_another_type(files: FileDescriptorSet) -> None:
    _message(files, "Job").field[0].type = FieldDescriptorProto.TYPE_INT64


def _field_repeated(files: FileDescriptorSet) -> None:
    _message(files, "Job").field[0].label = FieldDescriptorProto.LABEL_REPEATED


def _message_gone(files: FileDescriptorSet) -> None:
    _message(files, "Problem").name = "Other"


def _enum_value_gone(files: FileDescriptorSet) -> None:
    enum = next(one for file in files.file for one in file.enum_type if one.name == "JobState")
    del enum.value[3]


def _method_gone(files: FileDescriptorSet) -> None:
    del _service(files, "JobService").method[0]


def _method_with_another_request(files: FileDescriptorSet) -> None:
    _service(files, "JobService").method[0].input_type = ".gpu_platform.v1.GetJobRequest"


def _method_that_streams(files: FileDescriptorSet) -> None:
    _service(files, "JobService").method[0].server_streaming = True


def _service_gone(files: FileDescriptorSet) -> None:
    file = next(one for one in files.file if one.name.endswith("job_service.proto"))
    del file.service[0]


PLANTED: dict[Callable[[FileDescriptorSet], None], str] = {
    _field_gone: "was deleted",
    _field_renumbered: "was deleted",
    _field_renamed: "changed name",
    _field_of_another_type: "changed type",
    _field_repeated: "changed cardinality",
    _message_gone: "was deleted",
    _enum_value_gone: "was deleted",
    _method_gone: "was deleted",
    _method_with_another_request: "changed request type",
    _method_that_streams: "server unary to server streaming",
    _service_gone: "was deleted",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_what_breaks_clients_is_found(plant: Callable[[FileDescriptorSet], None], tmp_path: Path) -> None:
    now = compiling.descriptors(compiling.on_disk())
    released = tmp_path / "released.binpb"
    released.write_bytes(now.SerializeToString())
    plant(now)
    found = check_proto.problems(now, released)
    assert any(PLANTED[plant] in one for one in found), found


def test_the_script_says_what_is_wrong(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "scripts.check_proto"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# -- numbers ---------------------------------------------------------------------------------------


def _numbered(file: File, before: File | None = None) -> File:
    known = FileDescriptorSet()
    if before is not None:
        options = compiling.FOLDER / "options.proto"
        sources = {compiling.FOLDER / "types.proto": text_of(before).encode(), options: compiling.on_disk()[options]}
        known = compiling.descriptors(sources)
    numbers.assign([file], known)
    return file


def _file(fields: list[Field], values: list[str]) -> File:
    file = File("types")
    file.messages["Thing"] = Message("Thing", fields)
    file.enums["Kind"] = Enum("Kind", dict.fromkeys(values, 0))
    return file


def test_numbers_stay_where_they_are() -> None:
    first = _numbered(_file([Field("a", "string"), Field("b", "int64"), Field("c", "Kind")], ["x", "y"]))
    then = _numbered(_file([Field("new", "bool"), Field("c", "Kind"), Field("a", "string")], ["new", "y"]), first)
    thing, kind = then.messages["Thing"], then.enums["Kind"]
    assert {one.name: one.number for one in thing.fields} == {"a": 1, "c": 3, "new": 4}
    assert thing.reserved == [2]
    assert (kind.values, kind.reserved) == ({"y": 2, "new": 3}, [1])


def test_a_number_that_is_gone_never_comes_back() -> None:
    first = _numbered(_file([Field("a", "string"), Field("b", "int64")], ["x", "y"]))
    without = _numbered(_file([Field("a", "string")], ["x"]), first)
    again = _numbered(_file([Field("a", "string"), Field("b", "int64")], ["x", "y"]), without)
    assert {one.name: one.number for one in again.messages["Thing"].fields} == {"a": 1, "b": 3}
    assert again.enums["Kind"].values == {"x": 1, "y": 3}


@pytest.mark.parametrize(("before", "now"), [("string", "int64"), ("map<string, string>", "map<string, int64>")])
def test_a_field_of_another_type_gets_another_number(before: str, now: str) -> None:
    first = _numbered(_file([Field("a", before)], ["x"]))
    then = _numbered(_file([Field("a", now)], ["x"]), first)
    assert ([one.number for one in then.messages["Thing"].fields], then.messages["Thing"].reserved) == ([2], [1])


def test_presence_does_not_change_a_number() -> None:
    first = _numbered(_file([Field("a", "string")], ["x"]))
    then = _numbered(_file([Field("a", "string", "optional")], ["x"]), first)
    assert [one.number for one in then.messages["Thing"].fields] == [1]
