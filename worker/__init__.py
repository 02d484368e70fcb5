"""What do the hands of Rooftile do? compile/ builds artifacts, verify/ proves them, measure/ times them.

`python -m worker compile` and `python -m worker measure --device KEY` are loops of claim, do, complete.
"""
