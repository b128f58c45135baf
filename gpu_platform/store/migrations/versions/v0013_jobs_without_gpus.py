"""Jobs without GPUs hold CPUs and memory of hosts: an allocation need not name a GPU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NUMBERED = """
UPDATE allocation SET number = (
    SELECT count(*) FROM allocation AS earlier
    WHERE earlier.job_id = allocation.job_id AND earlier.attempt = allocation.attempt
    AND earlier.gpu_uuid < allocation.gpu_uuid
)
"""
_OF_A_GPU = "gpu_uuid IS NOT NULL OR (NOT exclusive AND sm_percent = 0 AND memory_mib = 0 AND mig_mask = 0)"
_ONE_GPU_ONCE = "uq_allocation_job_id_attempt_gpu_uuid"


def upgrade() -> None:
    op.add_column("allocation", sa.Column("number", sa.Integer(), nullable=False, server_default="0"))
    op.execute(sa.text(_NUMBERED))
    with op.batch_alter_table("allocation") as batch:
        batch.drop_constraint("pk_allocation", type_="primary")
        batch.alter_column("gpu_uuid", existing_type=sa.Text(), nullable=True)
        batch.create_primary_key("pk_allocation", ["job_id", "attempt", "number"])
        batch.create_check_constraint("ck_allocation_of_a_gpu", sa.text(_OF_A_GPU))
    op.create_index(_ONE_GPU_ONCE, "allocation", ["job_id", "attempt", "gpu_uuid"], unique=True)


def downgrade() -> None:
    op.drop_index(_ONE_GPU_ONCE, "allocation")
    op.execute(sa.text("DELETE FROM allocation WHERE gpu_uuid IS NULL"))
    with op.batch_alter_table("allocation") as batch:
        batch.drop_constraint("ck_allocation_of_a_gpu", type_="check")
        batch.drop_constraint("pk_allocation", type_="primary")
        batch.alter_column("gpu_uuid", existing_type=sa.Text(), nullable=False)
        batch.create_primary_key("pk_allocation", ["job_id", "attempt", "gpu_uuid"])
        batch.drop_column("number")
