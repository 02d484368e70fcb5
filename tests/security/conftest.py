"""The fixtures of the API (support/api.py)."""

from support.api import anonymous, app, as_token, client, seed, settings

__all__ = ["anonymous", "app", "as_token", "client", "seed", "settings"]
