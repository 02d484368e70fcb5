"""Which modules run kernels? x86 (shared objects on a thread pool) and cuda (cubins through CuPy).

Operands and errors are theirs in common.

Nothing is imported here: a program that only talks to the service loads no launcher.
"""
