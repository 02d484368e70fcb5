"""What a problem of a job is there for, and what a sweep ends in: tables that say which release to use at
which size.

Revision 0008, on 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("job_problems", sa.Column("role", sa.String(32), server_default="search", nullable=False))
    op.add_column("job_problems", sa.Column("line", sa.Integer(), nullable=True))
    op.create_table(
        "dispatch_tables",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("layer_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("policy_key", sa.String(64), nullable=False),
        sa.Column("job_id", _BIG, nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("axis", sa.String(32), nullable=False),
        sa.Column("low", _BIG, nullable=False),
        sa.Column("high", _BIG, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fixed", _JSON, nullable=False),
        sa.Column("tuned", _JSON, nullable=False),
        sa.Column("held_out", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dispatch_tables"),
        sa.UniqueConstraint("job_id", "line", "device_key", name="uq_dispatch_tables_job_id_line_device_key"),
    )
    op.create_index(
        "ix_dispatch_tables_layer", "dispatch_tables", ["layer_key", "device_key", "policy_key", "id"]
    )
    op.create_table(
        "dispatch_intervals",
        sa.Column("table_id", _BIG, nullable=False),
        sa.Column("low", _BIG, autoincrement=False, nullable=False),
        sa.Column("high", _BIG, nullable=False),
        sa.Column("tuned_at", _BIG, nullable=False),
        sa.Column("release_id", _BIG, nullable=False),
        sa.Column("schedule_key", sa.String(64), nullable=True),
        sa.Column("mean_loss", sa.Float(), nullable=True),
        sa.Column("worst_loss", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["dispatch_tables.id"],
            name="fk_dispatch_intervals_table_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("table_id", "low", name="pk_dispatch_intervals"),
    )


def downgrade() -> None:
    op.drop_table("dispatch_intervals")
    op.drop_index("ix_dispatch_tables_layer", "dispatch_tables")
    op.drop_table("dispatch_tables")
    # The older code would search what is only to be measured; and it knows no rest.
    op.execute(
        "UPDATE job_problems SET state = 'cancelled', reason = 'job_ended', finished_at = CURRENT_TIMESTAMP"
        " WHERE role <> 'search' AND finished_at IS NULL"
    )
    op.execute("UPDATE job_problems SET state = 'searching' WHERE state = 'resting'")
    op.drop_column("job_problems", "line")
    op.drop_column("job_problems", "role")
