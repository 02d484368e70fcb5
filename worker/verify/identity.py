"""Which emulator, and which judge of its results, gave a verdict?

Remembered verdicts outlive the code that gave them. What a verdict says depends on the emulator's sources and
on the references and bounds beside this file, as an artifact does on its template, so their hash is part of
what a verdict is remembered by: one changed line, and structures are run again.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

NAME = "emulator"
"""Under which name it stands in a structure."""
_JUDGES = (
    "emulated",
    "proof_cases",
    "cases",
    "checks",
    "prepared",
    "reference",
    "bounds",
    "poison",
    "elements",
)


@cache
def proof_identity() -> str:
    """Sixteen digits; reads some fifty files once."""
    here = Path(__file__).parent
    files = [here / f"{name}.py" for name in _JUDGES]
    spec = find_spec("emulator")  # found, not imported: a compile worker needs none of it
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        files += Path(folder).rglob("*.py")
    found = sha256()
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]
