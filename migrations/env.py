"""How does Alembic run our migrations? In the transaction that service.store.migrate opened."""

from __future__ import annotations

from alembic import context

from service.store.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("Migrations are run by `rooftile migrate`.")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    # SQLite changes a table by copying it; its DDL is transactional as long as the driver does not meddle
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
