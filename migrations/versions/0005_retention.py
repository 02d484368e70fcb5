"""What letting go of old bulk needs: which jobs still have all their details, which artifacts their bytes.

Revision 0005, on 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("compacted_at", sa.DateTime(timezone=True), nullable=True))
    whole = sa.text("compacted_at IS NULL")
    op.create_index("ix_jobs_whole", "jobs", ["id"], postgresql_where=whole, sqlite_where=whole)
    kept = {name: sa.text(text) for name, text in (("postgresql", "stored"), ("sqlite", "stored = 1"))}
    op.create_index(
        "ix_artifacts_stored",
        "artifacts",
        ["kind", "size_bytes"],
        postgresql_where=kept["postgresql"],
        sqlite_where=kept["sqlite"],
    )


def downgrade() -> None:
    op.drop_index("ix_artifacts_stored", "artifacts")
    op.drop_index("ix_jobs_whole", "jobs")
    op.drop_column("jobs", "compacted_at")
