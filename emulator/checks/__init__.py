"""How are faults seen that a wrong number need not show? clocks.py: what happens before what; shadow.py: who
touched each byte last."""
