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
cuda_device.py   which GPU is it; CudaSession in cuda_session.py is what MeasureSession is to a CPU
cuda_child.py    its measuring process, which holds the context and runs candidates itself
cuda_problems.py, cuda_candidate.py, cuda_race.py  as problems, candidate and race, on a device
cuda_backend.py  what they need of a GPU, and CuPy behind it; cuda_baseline.py: cuBLASLt and torch
cuda_watch.py    clocks, throttling, others; cuda_health.py: is the device fit
channel.py       JSON lines over pipes
"""
