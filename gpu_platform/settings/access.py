"""The section ``access`` of the settings: namespaces, priorities, and people who sign in elsewhere (OIDC)."""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.texts import check_name
from gpu_platform.outgoing import OutgoingReach, place_of
from gpu_platform.settings.section import Section


class OidcSettings(Section):
    """People sign in at an OpenID Connect provider."""

    issuer: str | None = None
    """Address of the provider, as it stands in its tokens, e.g. ``https://login.example.com/realms/lab``. None: nobody
    signs in that way."""
    other_hosts: list[str] = []
    """``HOST`` or ``HOST:PORT``: where the provider may send the service for its keys and tokens, besides the place of
    the ``issuer`` and port 443 of public addresses. For providers inside that have several names."""
    audience: str = "gpu-platform"
    """Who the tokens must be made for (claim ``aud``)."""
    client_id: str = "gpu-platform"
    """The public client that ``gpu-platform login`` uses; it needs the device authorization grant."""
    scopes: list[str] = ["openid", "offline_access"]
    """What ``gpu-platform login`` asks for."""
    use_id_token: bool = False
    """true: clients send the ID token, for providers whose access tokens are no JWTs; set ``audience`` to
    ``client_id``."""
    user_claim: str = "sub"
    """The claim that names the user. It must be unique for ever, and users must not be able to choose it."""
    mail_claim: str = "email"
    """The claim with a user's mail address, for notifications of jobs. It counts only if the provider does not say that
    it is unverified (``email_verified: false``)."""
    roles_claim: str = "groups"
    """The claim with the groups of a user, a list or one text; with dots for claims inside others:
    ``realm_access.roles``."""
    roles: dict[str, dict[str, Role]] = {}
    """Group -> namespace -> role, e.g. ``{ml: {team-a: user}, gpu-admins: {"*": admin}}``."""
    token_days: Annotated[int, Field(ge=1)] = 90
    """The longest life of an API token that somebody makes who signed in there: the provider cannot end it. It is the
    default, too. Admins of the cluster make tokens without an end."""
    everybody: dict[str, Role] = {}
    """Namespace -> role of everybody who signs in."""

    @field_validator("issuer")
    @classmethod
    def _is_private(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
                raise ValueError(f"the issuer {value!r} must be an https address: its keys decide who gets in")
        return value

    @field_validator("other_hosts")
    @classmethod
    def _are_places(cls, value: list[str]) -> list[str]:
        for one in value:
            place_of(f"https://{one}")
            if not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", one):
                raise ValueError(f"access.oidc.other_hosts: {one!r} is neither HOST nor HOST:PORT")
        return value

    @property
    def reach(self) -> OutgoingReach:
        """Where the service connects when it asks the provider: where an operator says, and what is public."""
        named = [*([self.issuer] if self.issuer else []), *(f"https://{one}" for one in self.other_hosts)]
        return OutgoingReach(trusted=frozenset(place_of(one) for one in named))


class AccessSettings(Section):
    """Who may do what; read by the service."""

    namespaces: list[str] = []
    """Namespaces of jobs, besides ``default``, those of ``scheduler.policy.quotas``, and those in which somebody has a
    role. Jobs of other namespaces are refused."""
    open_namespaces: bool = False
    """true: a job may name any namespace in which its user has a role; a namespace without a quota has no limit."""
    priorities: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = {
        "low": -100,
        "normal": 0,
        "high": 100,
        "urgent": 1000,
    }
    """Named levels of priority, for ``submit --priority high`` and ``access.max_priority``."""
    max_priority: dict[Role, str | int] = {Role.USER: "normal", Role.OPERATOR: "urgent", Role.ADMIN: "urgent"}
    """Role -> the highest priority of its jobs: a level or a number. A token may have another."""
    oidc: OidcSettings = OidcSettings()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in self.namespaces:
            check_name(name)
        for role, level in self.max_priority.items():
            if isinstance(level, str) and level not in self.priorities:
                raise ValueError(f"max_priority of {role} is {level!r}, which is not in priorities")
        return self

    def highest_priority(self, role: Role) -> int:
        """The highest priority that somebody with this role may give to a job."""
        return max((self.level(one) for of, one in self.max_priority.items() if role.includes(of)), default=0)

    def level(self, priority: str | int) -> int:
        """The priority as a number, if it is named."""
        return self.priorities[priority] if isinstance(priority, str) else priority
