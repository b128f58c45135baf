"""The base class of all tables, and the kinds of columns that they share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import declared_attr
from sqlmodel import Field, SQLModel


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time; always aware, always UTC, on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert the time to UTC for the database. Raises :class:`ValueError` for one without a time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time from the database with its time zone, which is UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


BIG_SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""The type of a primary key that counts up by itself: on SQLite only INTEGER PRIMARY KEY does."""


def text_column() -> Any:
    """A text that is always there."""
    return Field(sa_type=Text)


def optional_text_column() -> Any:
    """A text, or NULL."""
    return Field(default=None, sa_type=Text)


def time_column() -> Any:
    """A point in time that is always there."""
    return Field(sa_type=UtcDateTime)


def big_count_column() -> Any:
    """A number that is 0 at first and may grow beyond 32 bits."""
    return Field(default=0, sa_type=BigInteger)


def optional_time_column() -> Any:
    """A point in time, or NULL."""
    return Field(default=None, sa_type=UtcDateTime)


class Record(SQLModel):
    """Base of all tables; ``QueueEntryRecord`` is the table ``queue_entry``."""

    @declared_attr  # type: ignore[arg-type]  # as SQLModel itself declares it
    def __tablename__(cls) -> str:  # type: ignore[override]
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Record")).lower()

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def table_of(record: type[Record]) -> Table:
    """The table that ``record`` defines, for statements."""
    return Record.metadata.tables[str(record.__tablename__)]
