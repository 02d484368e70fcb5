"""Recorded search spaces, as the search is judged on them."""
