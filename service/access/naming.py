"""Who may speak in the name of somebody else: a name is an identity, and hosts may give it a local account."""

from __future__ import annotations

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.access import tokens


def why_not_named(settings: Settings, store: Store, principal: Principal, user: str, role: Role) -> str | None:
    """Why ``principal`` may not act as ``user``, or make a token with that name. None: it may.

    With ``role`` in the cluster one may name anybody. With ``role`` in namespaces only: people of these namespaces
    alone. Whoever is known elsewhere has jobs, tokens and maybe an account on the hosts (``node.users``) there, and
    the name would open them.
    """
    if user == principal.name and principal.kind is PrincipalKind.PERSON:
        return None
    if principal.has(role, CLUSTER):
        return None
    if settings.access.oidc.issuer is not None:
        return f"people sign in at {settings.access.oidc.issuer}, and only {_an(role)} of the cluster names others"
    if user in settings.node.users:
        return f"{user} has a local account on the hosts (node.users), and only {_an(role)} of the cluster names them"
    elsewhere = sorted(one for one in tokens.namespaces_of(store, user) if not principal.has(role, one))
    if elsewhere:
        return f"{user} is known outside of your namespaces: ask {_an(role)} of the cluster"
    return None


def _an(role: Role) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
