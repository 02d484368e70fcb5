"""How does anything change its state?

Only here: `transition` checks the table, changes the row by compare-and-swap and writes the event,
all in the caller's transaction.
"""
