"""Which tables does the first version have?

Revision 0001. Everything is written out here and nothing imported from the models: a migration is
history and does not change when they do. Over 400 lines: the whole schema.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("size_bytes", BigId, nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("recipe", Json, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name="pk_artifacts"),
    )
    op.create_table(
        "browser_sessions",
        sa.Column("id", BigId, nullable=False),
        sa.Column("cookie_sha256", sa.String(64), nullable=False),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("expires_at", Time, nullable=False),
        sa.Column("revoked_at", Time, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_browser_sessions"),
        sa.UniqueConstraint("cookie_sha256", name="uq_browser_sessions_cookie_sha256"),
    )
    op.create_table(
        "devices",
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("data", Json, nullable=False),
        sa.Column("roof", Json, nullable=True),
        sa.Column("roof_at", Time, nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("last_seen_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_devices"),
    )
    op.create_table(
        "events",
        sa.Column("id", BigId, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject_id", BigId, nullable=False),
        sa.Column("job_id", BigId, nullable=True),
        sa.Column("source", sa.String(32), nullable=True),
        sa.Column("to", sa.String(64), nullable=False),
        sa.Column("reason", sa.String(64), nullable=True),
        sa.Column("at", Time, nullable=False),
        sa.Column("data", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id", "events", ["job_id", "id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", Json, nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("token", BigId, nullable=False),
        sa.Column("expires_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_index("ix_leases_owner", "leases", ["owner"], unique=False)
    op.create_table(
        "login_codes",
        sa.Column("id", BigId, nullable=False),
        sa.Column("code_sha256", sa.String(64), nullable=False),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("expires_at", Time, nullable=False),
        sa.Column("used_at", Time, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_login_codes"),
        sa.UniqueConstraint("code_sha256", name="uq_login_codes_code_sha256"),
    )
    op.create_table(
        "problems",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("layer_key", sa.String(64), nullable=False),
        sa.Column("op", sa.String(32), nullable=False),
        sa.Column("dtype", sa.String(64), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("spec", Json, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_problems"),
    )
    op.create_index("ix_problems_layer_key", "problems", ["layer_key"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", BigId, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("expires_at", Time, nullable=True),
        sa.Column("revoked_at", Time, nullable=True),
        sa.Column("last_used_at", Time, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("token_sha256", name="uq_tokens_token_sha256"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("data", Json, nullable=False),
        sa.Column("started_at", Time, nullable=False),
        sa.Column("heartbeat_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "demand",
        sa.Column("problem_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("policy_key", sa.String(64), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("count", BigId, nullable=False),
        sa.Column("first_seen_at", Time, nullable=False),
        sa.Column("last_seen_at", Time, nullable=False),
        sa.ForeignKeyConstraint(["problem_key"], ["problems.key"], name="fk_demand_problem_key"),
        sa.PrimaryKeyConstraint("problem_key", "device_key", "policy_key", name="pk_demand"),
    )
    op.create_index("ix_demand_count", "demand", ["count"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", BigId, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("seed", BigId, nullable=False),
        sa.Column("token_id", BigId, nullable=True),
        sa.Column("dedup_key", sa.String(128), nullable=True),
        sa.Column("policy_key", sa.String(64), nullable=False),
        sa.Column("budget_trials", BigId, nullable=True),
        sa.Column("budget_seconds", sa.Float(), nullable=True),
        sa.Column("budget_device_seconds", sa.Float(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time, nullable=True),
        sa.Column("finished_at", Time, nullable=True),
        sa.Column("running_since", Time, nullable=True),
        sa.Column("ran_s", sa.Float(), nullable=False),
        sa.Column("policy", Json, nullable=False),
        sa.Column("target", Json, nullable=False),
        sa.Column("options", Json, nullable=False),
        sa.Column("request", Json, nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_jobs_token_id", ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state_priority", "jobs", ["state", "priority", "id"], unique=False)
    op.create_index("ix_jobs_token_id", "jobs", ["token_id", "id"], unique=False)
    op.create_index(
        "uq_jobs_open_dedup_key",
        "jobs",
        ["dedup_key"],
        unique=True,
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "releases",
        sa.Column("id", BigId, nullable=False),
        sa.Column("problem_key", sa.String(64), nullable=False),
        sa.Column("layer_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("policy_key", sa.String(64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("winner", sa.String(32), nullable=False),
        sa.Column("job_id", BigId, nullable=False),
        sa.Column("job_problem_id", BigId, nullable=False),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("race_id", BigId, nullable=True),
        sa.Column("family", sa.String(64), nullable=True),
        sa.Column("schedule_key", sa.String(64), nullable=True),
        sa.Column("toolchain_key", sa.String(64), nullable=True),
        sa.Column("artifact_sha256", sa.String(64), nullable=True),
        sa.Column("pool_sha256", sa.String(64), nullable=True),
        sa.Column("time_us", sa.Float(), nullable=False),
        sa.Column("baseline_time_us", sa.Float(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("change_id", BigId, nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("published_at", Time, nullable=True),
        sa.Column("ended_at", Time, nullable=True),
        sa.Column("policy", Json, nullable=False),
        sa.Column("schedule", Json, nullable=True),
        sa.Column("plan", Json, nullable=True),
        sa.Column("toolchain", Json, nullable=True),
        sa.Column("baseline", Json, nullable=False),
        sa.Column("tie_set", Json, nullable=False),
        sa.Column("noise", Json, nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_sha256"], ["artifacts.sha256"], name="fk_releases_artifact_sha256"
        ),
        sa.ForeignKeyConstraint(["problem_key"], ["problems.key"], name="fk_releases_problem_key"),
        sa.PrimaryKeyConstraint("id", name="pk_releases"),
        sa.UniqueConstraint(
            "problem_key",
            "device_key",
            "policy_key",
            "generation",
            name="uq_releases_problem_key_device_key_policy_key_generation",
        ),
    )
    op.create_index("ix_releases_artifact_sha256", "releases", ["artifact_sha256"], unique=False)
    op.create_index("ix_releases_change_id", "releases", ["change_id"], unique=False)
    op.create_index("ix_releases_layer", "releases", ["layer_key", "device_key", "state"], unique=False)
    op.create_index(
        "ix_releases_schedule", "releases", ["arch", "schedule_key", "toolchain_key"], unique=False
    )
    op.create_index("ix_releases_state", "releases", ["state", "id"], unique=False)
    op.create_index(
        "uq_releases_published",
        "releases",
        ["problem_key", "device_key", "policy_key"],
        unique=True,
        postgresql_where=sa.text("state = 'published'"),
        sqlite_where=sa.text("state = 'published'"),
    )
    op.create_table(
        "job_problems",
        sa.Column("id", BigId, nullable=False),
        sa.Column("job_id", BigId, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("problem_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=True),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("budget_trials", BigId, nullable=True),
        sa.Column("budget_seconds", sa.Float(), nullable=True),
        sa.Column("budget_device_seconds", sa.Float(), nullable=True),
        sa.Column("seed", BigId, nullable=False),
        sa.Column("started_at", Time, nullable=True),
        sa.Column("finished_at", Time, nullable=True),
        sa.Column("search", Json, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_problems_job_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["problem_key"], ["problems.key"], name="fk_job_problems_problem_key"),
        sa.PrimaryKeyConstraint("id", name="pk_job_problems"),
        sa.UniqueConstraint("job_id", "position", name="uq_job_problems_job_id_position"),
    )
    op.create_index(
        "ix_job_problems_problem_key", "job_problems", ["problem_key", "device_key"], unique=False
    )
    op.create_table(
        "races",
        sa.Column("id", BigId, nullable=False),
        sa.Column("job_id", BigId, nullable=False),
        sa.Column("job_problem_id", BigId, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(200), nullable=True),
        sa.Column("lease_expires_at", Time, nullable=True),
        sa.Column("seed", BigId, nullable=False),
        sa.Column("device_s", sa.Float(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time, nullable=True),
        sa.Column("finished_at", Time, nullable=True),
        sa.Column("policy", Json, nullable=False),
        sa.Column("noise", Json, nullable=True),
        sa.Column("environment", Json, nullable=True),
        sa.Column("evidence", Json, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_races_job_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["job_problem_id"], ["job_problems.id"], name="fk_races_job_problem_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_races"),
        sa.UniqueConstraint("job_problem_id", "number", name="uq_races_job_problem_id_number"),
    )
    op.create_index("ix_races_job_id", "races", ["job_id"], unique=False)
    op.create_index("ix_races_lease_expires_at", "races", ["lease_expires_at"], unique=False)
    op.create_index("ix_races_state", "races", ["state", "device_key"], unique=False)
    op.create_table(
        "trials",
        sa.Column("id", BigId, nullable=False),
        sa.Column("job_id", BigId, nullable=False),
        sa.Column("job_problem_id", BigId, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("problem_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=True),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("schedule_key", sa.String(64), nullable=False),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("predicted_us", sa.Float(), nullable=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("stage", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(200), nullable=True),
        sa.Column("lease_expires_at", Time, nullable=True),
        sa.Column("artifact_sha256", sa.String(64), nullable=True),
        sa.Column("pool_sha256", sa.String(64), nullable=True),
        sa.Column("toolchain_key", sa.String(64), nullable=True),
        sa.Column("time_us", sa.Float(), nullable=True),
        sa.Column("contended", sa.Boolean(), nullable=False),
        sa.Column("compile_s", sa.Float(), nullable=True),
        sa.Column("device_s", sa.Float(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("claimed_at", Time, nullable=True),
        sa.Column("finished_at", Time, nullable=True),
        sa.Column("schedule", Json, nullable=False),
        sa.Column("plan", Json, nullable=True),
        sa.Column("toolchain", Json, nullable=True),
        sa.Column("resources", Json, nullable=True),
        sa.Column("evidence", Json, nullable=True),
        sa.Column("log", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["artifact_sha256"], ["artifacts.sha256"], name="fk_trials_artifact_sha256"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_trials_job_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["job_problem_id"], ["job_problems.id"], name="fk_trials_job_problem_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["problem_key"], ["problems.key"], name="fk_trials_problem_key"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("job_problem_id", "number", name="uq_trials_job_problem_id_number"),
        sa.UniqueConstraint("job_problem_id", "schedule_key", name="uq_trials_job_problem_id_schedule_key"),
    )
    op.create_index("ix_trials_artifact_sha256", "trials", ["artifact_sha256"], unique=False)
    op.create_index(
        "ix_trials_best", "trials", ["job_problem_id", "state", "time_us", "number"], unique=False
    )
    op.create_index("ix_trials_job_fastest", "trials", ["job_id", "time_us", "id"], unique=False)
    op.create_index("ix_trials_job_listing", "trials", ["job_id", "id"], unique=False)
    op.create_index("ix_trials_job_outcome", "trials", ["job_id", "state", "reason"], unique=False)
    op.create_index("ix_trials_lease_expires_at", "trials", ["lease_expires_at"], unique=False)
    op.create_index("ix_trials_problem_fastest", "trials", ["problem_key", "time_us", "id"], unique=False)
    op.create_index("ix_trials_schedule", "trials", ["arch", "schedule_key", "toolchain_key"], unique=False)
    op.create_index("ix_trials_stage", "trials", ["stage", "lease_owner", "job_id", "number"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("id", BigId, nullable=False),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("median_us", sa.Float(), nullable=False),
        sa.Column("q10_us", sa.Float(), nullable=True),
        sa.Column("q90_us", sa.Float(), nullable=True),
        sa.Column("runs", BigId, nullable=False),
        sa.Column("contended", sa.Boolean(), nullable=False),
        sa.Column("started_at", Time, nullable=False),
        sa.Column("policy", Json, nullable=False),
        sa.Column("environment", Json, nullable=False),
        sa.Column("samples_us", Json, nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_measurements_trial_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
    )
    op.create_index("ix_measurements_trial_id", "measurements", ["trial_id", "id"], unique=False)
    op.create_table(
        "quarantines",
        sa.Column("id", BigId, nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("arch", sa.String(64), nullable=False),
        sa.Column("schedule_key", sa.String(64), nullable=False),
        sa.Column("toolchain_key", sa.String(64), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=True),
        sa.Column("artifact_sha256", sa.String(64), nullable=True),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("lifted_at", Time, nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_quarantines_trial_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_quarantines"),
    )
    op.create_index("ix_quarantines_artifact_sha256", "quarantines", ["artifact_sha256"], unique=False)
    op.create_index(
        "uq_quarantines_in_force",
        "quarantines",
        ["arch", "schedule_key", "toolchain_key"],
        unique=True,
        postgresql_where=sa.text("lifted_at IS NULL"),
        sqlite_where=sa.text("lifted_at IS NULL"),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", BigId, nullable=False),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("artifact_sha256", sa.String(64), nullable=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("max_error", sa.Float(), nullable=True),
        sa.Column("bound", sa.Float(), nullable=True),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("seeds", Json, nullable=False),
        sa.Column("checks", Json, nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_verdicts_trial_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_verdicts"),
    )
    op.create_index("ix_verdicts_trial_id", "verdicts", ["trial_id", "id"], unique=False)
    op.create_table(
        "race_entrants",
        sa.Column("id", BigId, nullable=False),
        sa.Column("race_id", BigId, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("trial_id", BigId, nullable=True),
        sa.Column("measurement_id", BigId, nullable=True),
        sa.Column("verdict_id", BigId, nullable=True),
        sa.Column("failure_state", sa.String(32), nullable=True),
        sa.Column("failure_reason", sa.String(32), nullable=True),
        sa.Column("failure_evidence", Json, nullable=True),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurements.id"], name="fk_race_entrants_measurement_id"
        ),
        sa.ForeignKeyConstraint(
            ["race_id"], ["races.id"], name="fk_race_entrants_race_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_race_entrants_trial_id"),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdicts.id"], name="fk_race_entrants_verdict_id"),
        sa.PrimaryKeyConstraint("id", name="pk_race_entrants"),
        sa.UniqueConstraint("race_id", "name", name="uq_race_entrants_race_id_name"),
    )
    op.create_index("ix_race_entrants_trial_id", "race_entrants", ["trial_id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_race_entrants_trial_id", table_name="race_entrants")
    op.drop_table("race_entrants")
    op.drop_index("ix_verdicts_trial_id", table_name="verdicts")
    op.drop_table("verdicts")
    op.drop_index(
        "uq_quarantines_in_force",
        table_name="quarantines",
        postgresql_where=sa.text("lifted_at IS NULL"),
        sqlite_where=sa.text("lifted_at IS NULL"),
    )
    op.drop_index("ix_quarantines_artifact_sha256", table_name="quarantines")
    op.drop_table("quarantines")
    op.drop_index("ix_measurements_trial_id", table_name="measurements")
    op.drop_table("measurements")
    op.drop_index("ix_trials_stage", table_name="trials")
    op.drop_index("ix_trials_schedule", table_name="trials")
    op.drop_index("ix_trials_problem_fastest", table_name="trials")
    op.drop_index("ix_trials_lease_expires_at", table_name="trials")
    op.drop_index("ix_trials_job_outcome", table_name="trials")
    op.drop_index("ix_trials_job_listing", table_name="trials")
    op.drop_index("ix_trials_job_fastest", table_name="trials")
    op.drop_index("ix_trials_best", table_name="trials")
    op.drop_index("ix_trials_artifact_sha256", table_name="trials")
    op.drop_table("trials")
    op.drop_index("ix_races_state", table_name="races")
    op.drop_index("ix_races_lease_expires_at", table_name="races")
    op.drop_index("ix_races_job_id", table_name="races")
    op.drop_table("races")
    op.drop_index("ix_job_problems_problem_key", table_name="job_problems")
    op.drop_table("job_problems")
    op.drop_index(
        "uq_releases_published",
        table_name="releases",
        postgresql_where=sa.text("state = 'published'"),
        sqlite_where=sa.text("state = 'published'"),
    )
    op.drop_index("ix_releases_state", table_name="releases")
    op.drop_index("ix_releases_schedule", table_name="releases")
    op.drop_index("ix_releases_layer", table_name="releases")
    op.drop_index("ix_releases_change_id", table_name="releases")
    op.drop_index("ix_releases_artifact_sha256", table_name="releases")
    op.drop_table("releases")
    op.drop_index(
        "uq_jobs_open_dedup_key",
        table_name="jobs",
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.drop_index("ix_jobs_token_id", table_name="jobs")
    op.drop_index("ix_jobs_state_priority", table_name="jobs")
    op.drop_table("jobs")
    op.drop_index("ix_demand_count", table_name="demand")
    op.drop_table("demand")
    op.drop_table("workers")
    op.drop_table("tokens")
    op.drop_index("ix_problems_layer_key", table_name="problems")
    op.drop_table("problems")
    op.drop_table("login_codes")
    op.drop_index("ix_leases_owner", table_name="leases")
    op.drop_table("leases")
    op.drop_index("ix_idempotency_keys_created_at", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_events_job_id", table_name="events")
    op.drop_table("events")
    op.drop_table("devices")
    op.drop_table("browser_sessions")
    op.drop_table("artifacts")
