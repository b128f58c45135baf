"""GPUs are given away in parts, and with them CPUs and memory of their hosts."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_GPU = {
    "mig_compute_slices": (
        "INTEGER NOT NULL DEFAULT 0 CONSTRAINT ck_gpu_mig_compute CHECK (mig_compute_slices BETWEEN 0 AND 7)"
    ),
    "mig_media": "INTEGER NOT NULL DEFAULT 0 CONSTRAINT ck_gpu_mig_media CHECK (mig_media BETWEEN 0 AND 1)",
    "share_mode": (
        "TEXT CONSTRAINT ck_gpu_shared_in_parts "
        "CHECK ((share_mode IS NOT NULL) = (exclusive_holders = 0 AND sm_percent_used > 0))"
    ),
    "tenant": (
        "TEXT NOT NULL DEFAULT '' CONSTRAINT ck_gpu_available_is_whole "
        "CHECK (state <> 'AVAILABLE' OR (sm_percent_used = 0 AND memory_used_mib = 0 AND mig_mask = 0))"
    ),
}
_ALLOCATION = {
    "share_mode": "TEXT",
    "mig_profile": "TEXT",
    "cpus": "INTEGER NOT NULL DEFAULT 0",
    "ram_mib": "INTEGER NOT NULL DEFAULT 0",
}
_HOST = {
    "cpus": "INTEGER NOT NULL DEFAULT 0",
    "ram_mib": "INTEGER NOT NULL DEFAULT 0",
    "cpus_used": "INTEGER NOT NULL DEFAULT 0 CONSTRAINT ck_host_cpus CHECK (cpus_used BETWEEN 0 AND cpus)",
    "ram_mib_used": "INTEGER NOT NULL DEFAULT 0 CONSTRAINT ck_host_ram CHECK (ram_mib_used BETWEEN 0 AND ram_mib)",
}


def upgrade() -> None:
    # As text: Alembic leaves the CHECK of an added column out.
    for table, columns in (("gpu", _GPU), ("allocation", _ALLOCATION), ("host", _HOST)):
        for name, kind in columns.items():
            op.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {name} {kind}"))
    connection = op.get_bind()
    for name, inventory in connection.execute(sa.text("SELECT name, inventory FROM host")).all():
        facts = json.loads(inventory)
        room = {"name": name, "cpus": facts.get("cpus") or 0, "ram": facts.get("ram_mib") or 0}
        connection.execute(sa.text("UPDATE host SET cpus = :cpus, ram_mib = :ram WHERE name = :name"), room)
    op.create_index(
        "uq_allocation_mig_start",
        "allocation",
        ["gpu_uuid", "mig_mask"],
        unique=True,
        sqlite_where=sa.text("released_at IS NULL AND mig_mask > 0"),
        postgresql_where=sa.text("released_at IS NULL AND mig_mask > 0"),
    )


def downgrade() -> None:
    op.drop_index("uq_allocation_mig_start", "allocation")
    for table, columns in (("gpu", _GPU), ("allocation", _ALLOCATION), ("host", _HOST)):
        with op.batch_alter_table(table) as batch:
            for name in reversed(columns):
                batch.drop_column(name)
