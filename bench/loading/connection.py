"""How are thousands of requests a second sent from one core? On kept connections, and as plainly as can be.

The requests of a load are known beforehand as bytes; of an answer the status is read and the body counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


class BrokenAnswer(Exception):
    """What came back is no answer."""


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes


class Connection:
    """One at a time: `ask`, and the answer comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
        return cls(reader, writer)

    async def ask(self, request: bytes) -> Answer:
        """BrokenAnswer where there is none."""
        self._writer.write(request)
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            lower = head.lower()
            at = lower.find(b"content-length: ")
            if at < 0:
                raise BrokenAnswer(f"{status}: an answer without a length")
            length = int(lower[at + 16 : lower.index(b"\r", at)])
            body = await self._reader.readexactly(length) if length else b""
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise BrokenAnswer(str(error)) from error
        return Answer(status, body)

    def close(self) -> None:
        self._writer.close()


def request(method: str, path: str, token: str, body: bytes | None = None) -> bytes:
    """The bytes of one request on a kept connection."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
