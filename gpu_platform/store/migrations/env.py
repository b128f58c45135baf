"""Alembic's entry point; :func:`gpu_platform.store.migrate.upgrade` hands over its connection."""

from alembic import context

from gpu_platform.store.models import Record

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Record.metadata,
    render_as_batch=True,  # SQLite alters tables only by copying them
)
with context.begin_transaction():
    context.run_migrations()
