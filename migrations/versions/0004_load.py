"""What many lookups and many hands need: the newest timed trials of a family, releases by trial,
who did what.

Revision 0004, on 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Time = sa.DateTime(timezone=True)
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    timed = sa.text("state IN ('measured', 'culled')")
    op.create_index(
        "ix_trials_timed",
        "trials",
        ["device_key", "family", "id"],
        postgresql_where=timed,
        sqlite_where=timed,
    )
    op.create_index("ix_releases_trial_id", "releases", ["trial_id"])
    op.create_table(
        "audit",
        sa.Column("id", BigId, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("origin", sa.String(200), nullable=False),
        sa.Column("data", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_action", "audit", ["action", "id"])


def downgrade() -> None:
    op.drop_table("audit")
    op.drop_index("ix_releases_trial_id", "releases")
    op.drop_index("ix_trials_timed", "trials")
