"""The fixtures of the API (support/api.py), for tests of what an operator sees."""

from support.api import anonymous, app, client, seed, settings

__all__ = ["anonymous", "app", "client", "seed", "settings"]
