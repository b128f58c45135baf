"""What people are told when they do not know how to go on."""

from __future__ import annotations

import pytest

import gpu_platform.identity.signing  # noqa: F401  its errors belong to the tree, too
from gpu_platform.cli.commands import COMMANDS
from gpu_platform.cli.next_steps import NEXT_STEPS, next_step
from gpu_platform.domain.errors import PlatformError
from gpu_platform.store import Store
from tests.support.api_server import application, keep_token, served
from tests.support.command_line import run


def codes(kind: type[PlatformError]) -> set[str]:
    return {kind.code}.union(*map(codes, kind.__subclasses__()))


def test_each_error_has_a_next_step() -> None:
    assert {code for code in codes(PlatformError) if not code.startswith("test")} <= set(NEXT_STEPS)


def test_commands_that_are_named_exist() -> None:
    for step in NEXT_STEPS.values():
        for words in step.split("gpu-platform ")[1:]:
            assert words.split()[0].rstrip(":;,)") in COMMANDS, step


def test_a_message_that_names_a_command_needs_no_other_step() -> None:
    assert next_step("not_found", "no job 'j'") is not None
    assert next_step("not_found", "no job 'j'; see gpu-platform jobs list") is None
    assert next_step("of_a_newer_release", "x") is None


async def test_without_a_command_it_says_where_one_is_and_what_to_do(sqlite_store: Store) -> None:
    ran = await run()
    assert ran.code == 0
    assert "does not answer" in ran.out
    assert "gpu-platform up" in ran.out
    async with served(application(sqlite_store, "127.0.0.1:1")) as url:
        ran = await run(url=url)
        assert (ran.code, ran.err) == (0, "")
        for words in (f"{url}: answers", "admin in the cluster", "gpu-platform submit"):
            assert words in ran.out
        ran = await run("jobs", "cancel", "j-0", url=url)
        assert (ran.code, ran.err.splitlines()[-1]) == (3, f"Next: {NEXT_STEPS['not_found']}")
        keep_token(url, "gpt_wrong")
        ran = await run(url=url)
        assert "not signed in" in ran.out
        assert "gpu-platform login" in ran.out


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["sbumit", "--", "x"], "submit"),
        (["jobs", "lst"], "list"),
        (["jobs", "list", "--sate", "RUNNING"], "--state"),
        (["jobs", "list", "--output", "tabel"], "table"),
    ],
)
async def test_what_is_mistyped_names_the_nearest(arguments: list[str], meant: str) -> None:
    ran = await run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert meant in ran.err
