"""The service process: REST and metrics. Stateless; any number may run."""

from __future__ import annotations

from gpu_platform.observability import configure_logging
from gpu_platform.settings import Settings
from gpu_platform.state_dir import keep_private
from gpu_platform.store import Store
from service.app import create_app
from service.server import Server


def main() -> None:
    """Run the REST service until it is told to stop."""
    settings = Settings()
    configure_logging("service", level=settings.log_level, json=settings.log_json)
    keep_private(settings.state_dir)
    store = Store(settings.store_url)
    store.migrate()
    Server(create_app(settings, store), settings.service.host, settings.service.port).run()


if __name__ == "__main__":
    main()
