"""A device that waits out recorded times: what runs with it is marked `replay` and never leaves the run."""
