"""How does a BuildSpec become an Artifact?

toolchain.py  which compiler is there, what is its identity
sources.py    which files make up a template, and their hash
sandbox.py    one compiler run that can be killed, with limits
elf.py        which symbols a shared object exports and needs
artifact.py   Artifact, recipe and their JSON
cache.py      content-addressed store under ROOFTILE_HOME/cache
x86.py        compile_kernel, compile_pool, compile_tool, rebuild
farm.py       many compiles at once, as the machine allows
"""

from worker.compile.artifact import Artifact
from worker.compile.x86 import (
    compile_kernel,
    compile_pool,
    compile_tool,
    get_toolchain,
    rebuild,
)

__all__ = ["Artifact", "compile_kernel", "compile_pool", "compile_tool", "get_toolchain", "rebuild"]
