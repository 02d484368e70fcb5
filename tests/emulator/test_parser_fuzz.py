"""Does any text end the parser in something else than a Module or a PtxError, or take it long?"""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.ptx_sources import nvrtc_ptx
from support.ptx_texts import CALLS, HOPPER, INLINED

from emulator.errors import PtxError
from emulator.ptx.parser import parse
from emulator.ptx.printer import print_module

_WORD = re.compile(r"[\w.$%:]+|\s+|.", re.ASCII)
_STRANGE = (
    "{", "}", "(", ")", "[", "]", ";", ",", ":", "@", "!", "|", "<", ">", "_", '"', "/*", "*/", "//", "\n",
    ".reg", ".param", ".loc", ".branchtargets", ".b32", ".align", ".v4", "%r1", "L", "call", "mov.b32", "0",
    "-1", "1e400", "0x", "18446744073709551616", "9" * 5000, "0f", "(" * 3000, "{" * 3000, "-" * 3000,
    "\0", "\u00b2", "\ud800",
)  # fmt: skip
_FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def texts() -> list[str]:
    return [HOPPER, CALLS, INLINED, nvrtc_ptx(13, "sm_80")]


def read(text: str) -> None:
    """Parse within a bound; what parses has to survive printing."""
    started = time.process_time()
    try:
        module = parse(text)
    except PtxError as error:
        assert error.line >= 0  # noqa: PT017
        assert str(error).startswith("PTX")  # noqa: PT017
        return
    finally:
        assert time.process_time() - started < 2
    assert len(parse(print_module(module)).functions) == len(module.functions)


@_FUZZ
@given(st.data())
def test_words_changed(data: st.DataObject) -> None:
    words = _WORD.findall(data.draw(st.sampled_from(texts())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        match data.draw(st.integers(0, 4)):
            case 0:
                del words[at]
            case 1:
                words.insert(at, data.draw(st.sampled_from(_STRANGE)))
            case 2:
                words[at] = data.draw(st.sampled_from(_STRANGE))
            case 3:
                words[at] = words[data.draw(st.integers(0, len(words) - 1))]
            case _:
                words.insert(at, words[at])
    read("".join(words))


@_FUZZ
@given(st.data())
def test_lines_changed(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(texts())).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        to = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                del lines[at]
            case 1:
                lines[at], lines[to] = lines[to], lines[at]
            case 2:
                lines[at:at] = lines[to : to + 5]
            case _:
                del lines[at:]
                lines.append("")
    read("\n".join(lines))


@_FUZZ
@given(st.data())
def test_bytes_changed(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(texts())).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    read(raw.decode("utf-8", "replace"))


@_FUZZ
@given(st.text(max_size=200), st.sampled_from(("", ".version 8.0\n.target sm_80\n", HOPPER)))
def test_any_text(text: str, before: str) -> None:
    read(before + text)


@pytest.mark.parametrize("cut", range(1, 40))
def test_texts_that_stop_in_the_middle(cut: int) -> None:
    start = HOPPER.index("{") + 1
    with pytest.raises(PtxError):
        parse(HOPPER[: start + (len(HOPPER) - start - 5) * cut // 40])
