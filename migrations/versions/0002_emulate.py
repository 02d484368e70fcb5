"""Emulated verdicts: what is run in the emulator, the PTX it runs, and releases that lack its verdict.

Revision 0002, on 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("ptx", sa.LargeBinary(), nullable=True))
    op.add_column("trials", sa.Column("structure_key", sa.String(64), nullable=True))
    op.add_column("trials", sa.Column("structure", Json, nullable=True))
    op.create_index("ix_trials_structure", "trials", ["structure_key", "toolchain_key"])
    # releases so far are of families whose verdict is the device's own check
    op.add_column(
        "releases", sa.Column("unproven", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "emulations",
        sa.Column("id", BigId, nullable=False),
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("toolchain_key", sa.String(64), nullable=False),
        sa.Column("structure_key", sa.String(64), nullable=False),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("job_id", BigId, nullable=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(200), nullable=True),
        sa.Column("lease_expires_at", Time, nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("max_error", sa.Float(), nullable=True),
        sa.Column("bound", sa.Float(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time, nullable=True),
        sa.Column("finished_at", Time, nullable=True),
        sa.Column("structure", Json, nullable=False),
        sa.Column("schedule", Json, nullable=False),
        sa.Column("seeds", Json, nullable=False),
        sa.Column("checks", Json, nullable=False),
        sa.Column("counters", Json, nullable=True),
        sa.Column("evidence", Json, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_emulations"),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_emulations_trial_id", ondelete="SET NULL"
        ),
    )
    for name, columns, scope in (
        ("uq_emulations_structure", ["structure_key", "toolchain_key", "family"], "structure"),
        ("uq_emulations_own", ["trial_id"], "trial"),
    ):
        where = sa.text(f"scope = '{scope}'")
        op.create_index(
            name, "emulations", columns, unique=True, postgresql_where=where, sqlite_where=where
        )
    op.create_index("ix_emulations_trial_id", "emulations", ["trial_id"])
    op.create_index("ix_emulations_state", "emulations", ["state", "id"])
    op.create_index("ix_emulations_lease_expires_at", "emulations", ["lease_expires_at"])


def downgrade() -> None:
    # The version before knows neither stage nor states of this one: what waits for the emulator ends
    # there as if nobody had asked for it, and reasons that it cannot read become one it can.
    op.execute("DELETE FROM verdicts WHERE kind = 'emulated'")
    op.execute("DELETE FROM events WHERE kind = 'emulation'")
    op.execute(
        "UPDATE trials SET state = 'ranked', stage = 'done', finished_at = created_at "
        "WHERE state = 'compiled' AND stage = 'emulate'"
    )
    op.execute(
        "UPDATE job_problems SET state = 'failed', reason = 'job_ended', finished_at = started_at "
        "WHERE state = 'proving'"
    )
    new_reasons = (
        "'race', 'read_unwritten', 'misaligned', 'deadlock', 'barrier_count', 'divergence', "
        "'outstanding_work', 'proxy', 'registers', 'descriptor', 'peer', 'trap', "
        "'not_emulated', 'emulate_timeout', 'emulate_memory', 'emulate_crash'"
    )
    for table in ("trials", "races", "quarantines"):
        op.execute(f"UPDATE {table} SET reason = 'wrong_result' WHERE reason IN ({new_reasons})")
    op.execute(
        f"UPDATE race_entrants SET failure_reason = 'wrong_result' WHERE failure_reason IN ({new_reasons})"
    )
    op.drop_table("emulations")
    op.drop_column("releases", "unproven")
    op.drop_index("ix_trials_structure", "trials")
    op.drop_column("trials", "structure")
    op.drop_column("trials", "structure_key")
    op.drop_column("artifacts", "ptx")
