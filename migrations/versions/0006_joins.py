"""Who else asked for a job: each may leave it, and it ends with the last.

Revision 0006, on 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Time = sa.DateTime(timezone=True)
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "job_joins",
        sa.Column("job_id", BigId, nullable=False),
        sa.Column("token_id", BigId, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_joins_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "token_id", name="pk_job_joins"),
    )


def downgrade() -> None:
    op.drop_table("job_joins")
