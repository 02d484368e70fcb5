"""How does a PTX text become words with line numbers?

One compiled expression cuts a line into words: strings, dotted identifiers ("mad.lo.s32", "%tid.x"),
directives (".reg"), numbers, and signs of one or two characters. Comments go first. What is no word of PTX
comes out as a sign that no rule expects, so it ends as an error at its line. Every expression here is
linear in the text's length.
"""

from __future__ import annotations

import re
from typing import NoReturn

from emulator.errors import PtxError

__all__ = ["Cursor", "tokenize"]

MAX_TEXT = 64 << 20

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"?'
    r"|[%$A-Za-z_][\w$]*(?:(?:\.|::)[\w$]+)*"
    r"|0[fFdDxX][0-9a-fA-F]+U?|\d[\w.]*(?:(?<=[eE])[+-]\d+)?"
    r"|\.[A-Za-z_][\w$]*(?:::[\w$]+)*"
    r"|<<|>>|<=|>=|==|!=|&&|\|\||\S",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+", re.ASCII)


class Cursor:
    """A place in the words of a text. `words` ends with three empty words, so that looking ahead is safe."""

    __slots__ = ("lines", "position", "words")

    def __init__(self, words: list[str], lines: list[int]) -> None:
        self.words = words
        self.lines = lines
        self.position = 0

    @property
    def word(self) -> str:
        """The next word, "" at the end."""
        return self.words[self.position]

    @property
    def line(self) -> int:
        """The line of the next word."""
        return self.lines[self.position]

    def take(self) -> str:
        """The next word, which is then behind. PtxError at the end of the text."""
        word = self.words[self.position]
        if not word:
            self.fail("the text ends in the middle")
        self.position += 1
        return word

    def accept(self, word: str) -> bool:
        """Step over `word` if it is the next."""
        if self.words[self.position] == word:
            self.position += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Step over `word`, or PtxError."""
        if self.words[self.position] != word:
            self.fail(f"expected '{word}', found {self.shown()}")
        self.position += 1

    def identifier(self, what: str) -> str:
        """The next word, which must be an identifier without dots."""
        word = self.words[self.position]
        if not _NAME.fullmatch(word):
            self.fail(f"expected {what}, found {self.shown()}")
        self.position += 1
        return word

    def shown(self) -> str:
        """The next word for a message."""
        word = self.words[self.position]
        return ascii(word[:60]) if word else "the end of the text"

    def fail(self, message: str) -> NoReturn:
        """PtxError at the line of the next word."""
        raise PtxError(message, self.lines[self.position])


def _without_comment(match: re.Match[str]) -> str:
    text = match.group()
    if text[0] == '"':
        return text
    if text[1] == "*" and (len(text) < 4 or not text.endswith("*/")):
        line = match.string.count("\n", 0, match.start()) + 1
        raise PtxError("a comment '/*' without its '*/'", line)
    return " " + "\n" * text.count("\n")


def tokenize(text: str) -> Cursor:
    """The words of `text`. PtxError for a text above 64 MiB, an open comment or an open string."""
    if len(text) > MAX_TEXT:
        raise PtxError(f"the text has {len(text)} characters, at most {MAX_TEXT} are read")
    text = text.rstrip("\0")  # NVRTC counts the end of its C string
    if "/" in text:
        text = _COMMENT.sub(_without_comment, text)
    words: list[str] = []
    lines: list[int] = []
    find = _TOKEN.findall
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        found = find(line)
        if found:
            words += found
            lines += [number] * len(found)
    for _ in range(3):
        words.append("")
        lines.append(max(number, 1))
    return Cursor(words, lines)
