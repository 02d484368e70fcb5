"""Which endpoints does /v1 have? One module a noun; each has a `router`."""
