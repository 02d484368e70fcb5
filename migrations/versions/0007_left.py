"""Who left a job that goes on for others, so that leaving twice is leaving once.

Revision 0007, on 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_joins", sa.Column("left_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_job_joins_token_id", "job_joins", ["token_id"])


def downgrade() -> None:
    op.drop_index("ix_job_joins_token_id", "job_joins")
    # to the older code every row is an owner
    op.execute("DELETE FROM job_joins WHERE left_at IS NOT NULL")
    op.drop_column("job_joins", "left_at")
