"""``gpu-platform tokens create --admin``: the first administrator's token, written into the database itself.

Who can do this can read and write the database anyway.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from gpu_platform.client.connection import default_user
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.domain.errors import PlatformError
from gpu_platform.settings.reading import read_settings
from gpu_platform.store import Store
from gpu_platform.store.access import tokens


def main(arguments: list[str]) -> int:
    """Make the token and print it. ``arguments``: the administrator's name, or nothing."""
    user = arguments[0] if arguments else default_user()
    try:
        settings = read_settings()
        store = Store(settings.store_url)
        store.migrate(accept_newer=settings.newer_schema == "accept")
        token = tokens.new_token()
        request = TokenRequest(user=user, note="tokens create --admin")
        info = tokens.add_token(
            store, token, request, roles=tokens.cluster_admin(), actor=f"{user}@database", now=datetime.now(UTC)
        )
        store.close()
    except (PlatformError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(token)
    print(f"token {info.id} of the administrator {user}, in {store.shown_url}; it is shown only now", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
