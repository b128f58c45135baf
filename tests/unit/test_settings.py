"""Wrong settings are told with their names, where they stand, and what is allowed; secrets are not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import CannotStart
from gpu_platform.settings.reading import misspelt_variables, open_secrets, read_settings


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "gpu-platform.yaml"
    monkeypatch.setenv("GPU_PLATFORM_CONFIG", str(file))
    file.touch()
    return file


def refusal() -> str:
    with pytest.raises(CannotStart) as refused:
        read_settings()
    assert "\n" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("service:\n  port: 99999", "service.port is 99999 (FILE, line 2): should be less than or equal to 65535"),
        ("node: {nmae: x}", "node.nmae (FILE, line 1): there is no such setting; did you mean node.name?"),
        ("gateway: {colour: x}", "there is no such setting; there are: host, port, metrics_port"),
        ("fencing: losely", "fencing is 'losely' (FILE, line 1): should be 'lease', 'strict' or 'relaxed'"),
        ("temporal: {address: localhost}", "(FILE, line 1): write HOST:PORT, e.g. 127.0.0.1:7233"),
        ("api_url: localhost:8700", "api_url is 'localhost:8700' (FILE, line 1): write http://HOST:PORT or https:"),
        ("log_level: loud", "should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("scheduler: {audit_keep_days: 5}", "scheduler (FILE, line 1): audit_keep_days needs audit_archive"),
        ("service: [1]", "service (FILE, line 1): should be a valid dictionary"),
        ("node: {name: a", "FILE is not YAML: "),
        ("- node", "FILE must be a mapping of names of settings to their values"),
        ("1: x", "FILE has 1 where the name of a setting must be"),
        ("node: {token: [s3cret]}", "node.token has a wrong value (not shown here, it may be secret) (FILE, line 1)"),
    ],
)
def test_a_wrong_file_is_told(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    message = refusal()
    assert said.replace("FILE", str(file)) in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    "text",
    [
        "database_url: postgresql://u:s3cret@h/db: oops",
        "node: {token: s3cret, [}",
        "database_url: 's3cret",
        "database_url: *s3cret",
        "database_url: !s3cret x",
        "database_url: &s3cret a\nnode: &s3cret b\nx: [",
        "- s3cret",
        "s3cret",
        "? [s3cret]\n: x",
        "\ts3cret: x",
        "node: {token: s3cret, token: }}",
        "%s3cret 1\n---\na: b",
        "a: |s3cret\n  x",
        "api_url: ftp://ada:s3cret@h:1",
        "service: {host: 'http://ada:s3cret@h', port: 'http://ada:s3cret@h'}",
        "tracing: {trace_url: 'ftp://ada:s3cret@h'}",
        "temporal: {address: 'ada://x:s3cret@h'}",
    ],
)
def test_no_message_has_a_part_of_the_file_that_may_be_secret(file: Path, text: str) -> None:
    file.write_text(f"cluster: {{name: x}}\n{text}" if ":" in text and text[0] not in "-%" else text)
    message = refusal()
    assert "s3cret" not in message
    assert str(file) in message


def test_all_wrong_settings_are_told_at_once_and_variables_win(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("service: {port: 1}\nlease_ttl_s: soon")
    monkeypatch.setenv("GPU_PLATFORM_SERVICE__PORT", "-1")
    message = refusal()
    assert "lease_ttl_s is 'soon'" in message
    assert "service.port is '-1' (variable GPU_PLATFORM_SERVICE__PORT): should be greater than or equal to 0" in message


def test_a_variable_that_must_be_json_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_NODE__NAME", "a")
    monkeypatch.setenv("GPU_PLATFORM_NODE__LABELS", "row=7")
    assert "node.labels: the variable GPU_PLATFORM_NODE__LABELS ('row=7') is no JSON; write a list as" in refusal()


def test_a_file_that_is_named_and_not_there_is_told(file: Path) -> None:
    file.unlink()
    assert f"GPU_PLATFORM_CONFIG is {file}, which does not exist" in refusal()


def test_variables_that_nobody_reads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPU_PLATFORM_LOG_LEVLE", "GPU_PLATFORM_TOKEN_FILE", "GPU_PLATFORM_JOB_ID", "GPU_PLATFORM_NODE__X"):
        monkeypatch.setenv(name, "x")
    assert list(misspelt_variables()) == [("GPU_PLATFORM_LOG_LEVLE", "GPU_PLATFORM_LOG_LEVEL")]


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("database_url: postgresql://u:s3cret@h/db", ["database_url"]),
        ("database_url: postgresql://u@h/db?password=s3cret", ["database_url"]),
        ("database_url: postgresql://u@h/db?passfile=/x", []),
        ("node: {token: s3cret, join_token: s3cret, token_file: /x}", ["node.token", "node.join_token"]),
        (
            "notifications: {targets: [{name: a, url_file: /x}, {name: b, url: 'mailto://u:s3cret@h'}]}",
            ["notifications.targets.url"],
        ),
        ("cluster: {name: x}", []),
        ("", []),
        ("- x", []),
    ],
)
def test_secrets_that_other_accounts_may_read_are_found(file: Path, text: str, secrets: list[str]) -> None:
    file.write_text(text)
    for mode in (0o644, 0o640, 0o604):
        file.chmod(mode)
        assert open_secrets() == secrets
    file.chmod(0o600)
    assert open_secrets() == []
    file.unlink()
    assert open_secrets() == []


def test_settings_in_lower_case_are_those_that_were_meant(file: Path) -> None:
    file.write_text("log_level: warning\ntemporal: {address: '[::1]:7233'}\napi_url: https://gpu-control.example")
    assert read_settings().log_level == "WARNING"
