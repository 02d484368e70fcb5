"""A cluster that is harmed on purpose: what stands between its processes, and what is done to them."""
