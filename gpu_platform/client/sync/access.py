# Generated from aio/access.py (make client): do not edit, change that one.
"""Who may do what: signing in, tokens, secrets and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import access_calls as calls
from gpu_platform.client import models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from gpu_platform.domain.access.secrets import SecretInfo, SecretValue
    from gpu_platform.domain.access.tokens import LoginInfo, NewToken, TokenInfo, TokenRequest, WhoAmI
    from gpu_platform.domain.audit import AuditRecord


class Access(Asking):
    """Methods about tokens, secrets and the audit log."""

    def how_to_sign_in(self) -> LoginInfo:
        """Where people sign in."""
        return self.send(calls.how_to_sign_in(), models.LoginInfo)

    def who_am_i(self) -> WhoAmI:
        """Who the service takes the owner of the token for, and what that one may do."""
        return self.send(calls.who_am_i(), models.WhoAmI)

    def create_token(self, request: TokenRequest) -> NewToken:
        """Make an API token. It is shown only in this answer."""
        return self.send(calls.create_token(request), models.NewToken)

    def tokens(self) -> Iterator[TokenInfo]:
        """One's own tokens; for an admin also those of others. Oldest first."""
        return self.pages(models.Page[models.TokenInfo], calls.tokens)

    def revoke_token(self, token_id: str) -> TokenInfo:
        """End a token at once."""
        return self.send(calls.revoke_token(token_id), models.TokenInfo)

    def secrets(self, *, namespace: str | None = None) -> Iterator[SecretInfo]:
        """Secrets of one's namespaces, without their values."""
        return self.pages(models.Page[models.SecretInfo], lambda cursor: calls.list_secrets(namespace, cursor))

    def set_secret(self, namespace: str, name: str, value: SecretValue) -> SecretInfo:
        """Keep a secret. Nobody reads its value back."""
        return self.send(calls.set_secret(namespace, name, value), models.SecretInfo)

    def delete_secret(self, namespace: str, name: str) -> None:
        """Remove a secret."""
        self.answer(calls.delete_secret(namespace, name))

    def audit(self, *, since: datetime | None = None) -> Iterator[AuditRecord]:
        """The audit log, oldest first, from ``since`` (with a time zone) or from its beginning."""
        return self.pages(models.Page[models.AuditRecord], lambda cursor: calls.audit(since, cursor))
