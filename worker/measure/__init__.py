"""How does an artifact get a Verdict and a time on this machine?

session.py       MeasureSession: the worker's side, one measuring process kept ready
outcomes.py      its answers as records
child.py         the measuring process: prepares problems, forks once for each candidate
problems.py      inputs, references and sets of buffers of one problem
process.py       one candidate's process: start, deadlines, how it died
candidate.py     what happens in it: load, prove, time, prove again
timing.py        samples, chunks, batches, the first look
statistics.py    median, quantiles, what cannot be true
policy.py        cold and warm
machine.py       what else the machine did meanwhile
limits.py        when does a run count as hanging
race.py          turns, rounds and the noise
entrant.py       one runner of a race
baseline_numpy.py  the Baseline as a runner; blas.py: its environment
roof.py          the device's peak and bandwidth; calibration.py: the kernel that measures them
tools.py         the helper artifacts in C
channel.py       JSON lines over pipes
"""
