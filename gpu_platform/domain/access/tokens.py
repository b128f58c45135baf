"""API tokens as people see them, and what it takes to make one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Permission, Role
from gpu_platform.domain.texts import check_name

PREFIX = "gpt_"
"""Every API token begins so: tools that look for secrets in texts find it."""


class TokenRequest(BaseModel):
    """What a new token is for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: Annotated[str | None, Field(description="Whose token it is; default: the one who asks")] = None
    roles: Annotated[
        dict[str, Role] | None,
        Field(max_length=1000, description="Namespace -> role, `*` for the cluster; default: those of who asks"),
    ] = None
    scopes: Annotated[
        list[Permission] | None, Field(max_length=50, description="Only these; default: all that the roles allow")
    ] = None
    max_priority: Annotated[
        int | None, Field(ge=-1000, le=1000, description="Highest priority of jobs; default: what the role allows")
    ] = None
    expires_at: Annotated[AwareDatetime | None, Field(description="Default: it does not expire")] = None
    note: Annotated[str, Field(max_length=200, description="What it is for")] = ""

    @field_validator("user")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @model_validator(mode="after")
    def _names_namespaces(self) -> Self:
        for namespace in self.roles or {}:
            if namespace != CLUSTER:
                check_name(namespace)
        if self.scopes == [] or self.roles == {}:
            raise ValueError("a token without scopes or without roles may do nothing: leave them out, or name some")
        return self


class TokenInfo(BaseModel):
    """A token, without what makes it valid."""

    id: str
    user: str
    roles: dict[str, Role]
    scopes: list[Permission] | None = None
    max_priority: int | None = None
    note: str = ""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute. None: it was never used."""
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """True if it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def principal(self) -> Principal:
        """The person whose token it is."""
        return Principal(
            kind=PrincipalKind.PERSON,
            name=self.user,
            roles=self.roles,
            permissions=None if self.scopes is None else frozenset(self.scopes),
            max_priority=self.max_priority,
            signed_in_by=f"token {self.id}",
            token_id=self.id,
            ends_at=None if self.expires_at is None else self.expires_at.timestamp(),
        )


class NewToken(BaseModel):
    """A token that was just made. The service keeps only its hash, so it is shown this one time."""

    token: str
    info: TokenInfo


class LoginInfo(BaseModel):
    """How people sign in here."""

    issuer: str | None = None
    """The OpenID Connect provider. None: there is none, people have API tokens."""
    client_id: str = ""
    scopes: list[str] = []
    use_id_token: bool = False
    """Send the ID token, not the access token."""


class KindOfWork(BaseModel):
    """What jobs of one kind of work get that do not give their own."""

    strategy: str
    priority: int
    """At most ``WhoAmI.max_priority`` of the job's namespace."""


class WhoAmI(BaseModel):
    """Who the service takes one for, and what one may do."""

    name: str
    kind: PrincipalKind
    roles: dict[str, Role]
    scopes: list[Permission] | None = None
    signed_in_by: str
    acting_as: str | None = None
    priorities: dict[str, int] = {}
    """The named levels of this cluster."""
    max_priority: dict[str, int] = {}
    """Namespace -> the highest priority of one's jobs there."""
    kinds: dict[str, KindOfWork] = {}
    """The kinds of work, and what they mean in this cluster."""
    default_kind: str | None = None
    """The kind of jobs that name none. None: they have none."""
    default_priority: int = 0
    """Priority of jobs that name neither one nor a kind with one. At most ``max_priority`` of the job's namespace."""
    default_time_limit_s: int | None = None
    """Time limit of jobs that name none, and no deadline. None: no limit."""


def missing_rights(maker: Principal, request: TokenRequest) -> str | None:
    """Why ``maker`` may not make this token: nobody gives more than they have. None: it may."""
    if maker.kind is not PrincipalKind.PERSON:
        return f"only people make tokens, and {maker.id} is none"
    for namespace, role in (request.roles or {}).items():
        if not maker.has(role, namespace):
            return f"it would have the role {role} in {_named(namespace)}, and {maker.described()} does not"
    others = request.user not in (None, maker.name)
    if others and request.roles is None:
        return f"say which roles the token of {request.user} gets"
    # A stolen token must not live on in tokens that the thief made with it.
    if others or maker.token_id is not None:
        for namespace in request.roles or maker.roles:
            if not maker.has(Role.ADMIN, namespace):
                return (
                    f"only an admin of {_named(namespace)} makes tokens {'for others' if others else 'with a token'}: "
                    f"ask one{'' if others else ', or sign in with gpu-platform login'}"
                )
    if maker.permissions is not None and not (
        request.scopes is not None and maker.permissions.issuperset(request.scopes)
    ):
        allowed = ", ".join(sorted(maker.permissions))
        return f"the token that asks has only the scopes {allowed}: give the new one no others"
    if maker.max_priority is not None and (request.max_priority is None or request.max_priority > maker.max_priority):
        return f"the token that asks has the highest priority {maker.max_priority}: give the new one max_priority"
    if request.max_priority is not None and maker.max_priority is None and not _sets_priorities(maker, request):
        return "only an admin sets max_priority"
    return None


def _sets_priorities(maker: Principal, request: TokenRequest) -> bool:
    return all(maker.has(Role.ADMIN, namespace) for namespace in request.roles or maker.roles)


def _named(namespace: str) -> str:
    return "the cluster" if namespace == CLUSTER else f"namespace {namespace}"
