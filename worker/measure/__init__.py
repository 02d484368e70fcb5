"""How does an artifact get a Verdict and a time on this machine?

session.py       MeasureSession: the parent's side, one measuring process kept ready
child.py         the measuring process: prepares problems, forks once for each candidate
"""
