"""A service with much in its database, and many who ask it at once."""
