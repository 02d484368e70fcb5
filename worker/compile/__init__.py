"""How does a BuildSpec become an Artifact?

dispatch.py       compile_kernel, get_toolchain, rebuild for every arch
x86.py            C to a shared object; compile_pool, compile_tool
cuda.py           CUDA to a cubin with its PTX
toolchain.py      which C compiler is there, what is its identity
nvrtc.py          which NVRTC is there, what is its identity
nvrtc_host.py     the worker's side of the process that forks for each NVRTC call
nvrtc_zygote.py   that process: standard library only, never imported for more than its constants
ptxas_log.py      the assembler's log as data
sources.py        which files make up a template, and their hash
sandbox.py        one C compiler run that can be killed, with limits
elf.py, cubin.py  what a shared object or a cubin says of itself
artifact.py       Artifact, recipe and their JSON
cache.py          content-addressed store under ROOFTILE_HOME/cache
eviction.py       how that store stays within its size
farm.py           many compiles at once, as the machine allows
"""

from worker.compile.artifact import Artifact
from worker.compile.dispatch import compile_kernel, get_toolchain, rebuild
from worker.compile.x86 import compile_pool, compile_tool

__all__ = ["Artifact", "compile_kernel", "compile_pool", "compile_tool", "get_toolchain", "rebuild"]
