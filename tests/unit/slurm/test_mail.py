"""``--mail-type`` and ``--mail-user``: what of them reaches a job depends on what the cluster sends."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_platform.cli import session
from gpu_platform.cli.submitting import scripts
from gpu_platform.client import models
from gpu_platform.slurm.mail import read_mail_types, read_mail_users
from gpu_platform.slurm.translation import Translation

ANN = "ann@home.example"
MAIL = models.ShownTarget(
    name="mail", kind="mailtos", namespaces=["team-a"], personal=True, domains=["lab.example"], address=ANN
)


class Cluster:
    """Answers who may be told of jobs."""

    def __init__(self, *targets: Any) -> None:
        self.targets = targets

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def notification_targets(self) -> list[Any]:
        return [*self.targets]


def asked(monkeypatch: pytest.MonkeyPatch, to: list[str], *targets: Any, **params: Any) -> tuple[Any, list[str]]:
    monkeypatch.setattr(session, "service", lambda: Cluster(*targets))
    notes = scripts._by_cluster(Translation(mail_on=["end", "fail"], mail_to=to), params)
    return params.get("notify"), notes


def test_words() -> None:
    assert read_mail_types("BEGIN,end,FAIL") == ["start", "end", "fail"]
    assert read_mail_types("ALL") == ["start", "end", "fail", "requeue"]
    assert read_mail_types("NONE") == []
    assert read_mail_users("ann@lab.example, bob") == ["ann@lab.example"]
    with pytest.raises(ValueError, match="'NEVER' is none of BEGIN"):
        read_mail_types("END,NEVER")


def test_a_cluster_that_sends_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, [], MAIL) == (["end,fail:mail"], [])
    assert asked(monkeypatch, ["bob@LAB.example"], MAIL) == (["end,fail:bob@LAB.example"], [])
    assert asked(monkeypatch, [ANN], MAIL) == (["end,fail:ann@home.example"], [])


def test_what_cannot_be_sent_is_said_and_the_job_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, notes = asked(monkeypatch, ["x@evil.example"], MAIL)
    assert rules is None
    assert notes == ["--mail-user=x@evil.example: no effect here: mail goes to lab.example"]
    for targets in ([], [MAIL.model_copy(update={"personal": False})]):
        rules, notes = asked(monkeypatch, [], *targets)
        assert rules is None
        assert "sends no mail" in notes[0]
    assert asked(monkeypatch, [], MAIL, namespace="team-b")[0] is None


def test_our_own_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, [], MAIL, notify=["none"]) == (["none"], [])
