"""What the commands of interactive work read: keys, ports, and the commands of placeholders."""

from __future__ import annotations

import pytest
import typer

from gpu_platform.cli import placeholder
from gpu_platform.cli.jobs.forward import PortPair, parse_ports
from gpu_platform.cli.jobs.streaming import LeaveKeys


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        (["ls\n"], "ls\n", False),
        (["~."], "", True),
        (["~", "."], "", True),
        (["ls ~.\n"], "ls ~.\n", False),
        (["ls\r~.rest"], "ls\r", True),
        (["~~.\n"], "~.\n", False),
        (["~/bin\n"], "~/bin\n", False),
        (["x", "\r", "~", "x"], "x\r~x", False),
    ],
)
def test_a_tilde_and_a_dot_at_the_start_of_a_line_leave(typed: list[str], sent: str, leaves: bool) -> None:
    keys = LeaveKeys()
    assert b"".join(keys.feed(piece.encode()) for piece in typed) == sent.encode()
    assert keys.left is leaves


def test_ports_are_here_and_there() -> None:
    assert parse_ports("8888") == PortPair(8888, 8888)
    assert parse_ports("9000:8888") == PortPair(9000, 8888)
    assert parse_ports(":8888") == parse_ports("0:8888") == PortPair(0, 8888)
    for wrong in ("", "x", "0", "8888:", "70000", "1:2:3", "-1", "8888:0", "127.0.0.1:80"):
        with pytest.raises(typer.BadParameter, match="is no port"):
            parse_ports(wrong)


def test_a_placeholder_is_known_again_and_shown_as_its_command() -> None:
    made = placeholder.placeholder(["bash", "-c", "exit 1"], 900)
    assert placeholder.command_of(made) == (["bash", "-c", "exit 1"], 900)
    assert placeholder.shown_command(made) == placeholder.shown_command(
        placeholder.session_command(["bash", "-c", "exit 1"])
    )
    for other in (["sh", "-c", "x"], ["sh", "-c", "x", "gpu-platform-run", "many", "bash"], ["python"]):
        assert placeholder.command_of(other) is None
    assert placeholder.shown_command(["python", "train.py"]) == ["python", "train.py"]
