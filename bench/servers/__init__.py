"""The real servers that benches and tests run against: Postgres and Valkey, from wheels."""
