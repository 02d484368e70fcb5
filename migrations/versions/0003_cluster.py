"""What many jobs on the same workers need: fair shares.

Revision 0003, on 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("queue", sa.String(160), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("parent", sa.String(64), nullable=False),
        sa.Column("served_s", sa.Float(), nullable=False),
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("each_s", sa.Float(), nullable=False),
        sa.Column("updated_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("queue", "owner", name="pk_shares"),
    )
    op.add_column("job_problems", sa.Column("shared_s", sa.Float(), nullable=False, server_default="0"))
    op.create_index("ix_job_problems_device", "job_problems", ["device_key", "state"])


def downgrade() -> None:
    op.drop_index("ix_job_problems_device", "job_problems")
    op.drop_column("job_problems", "shared_s")
    op.drop_table("shares")
