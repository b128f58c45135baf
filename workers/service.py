"""The service process: REST and metrics. Stateless; any number may run."""

from __future__ import annotations

import uvicorn

from gpu_platform.observability import configure_logging
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.app import create_app


def main() -> None:
    settings = Settings()
    configure_logging("service", level=settings.log_level, json=settings.log_json)
    store = Store(settings.store_url)
    store.migrate()
    uvicorn.run(
        create_app(settings, store),
        host=settings.service.host,
        port=settings.service.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
    )


if __name__ == "__main__":
    main()
