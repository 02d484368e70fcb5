"""How does a run harm connections? A TCP relay between a cluster's processes and one of its servers.

Each client gets a port of its own (`Relay.port`), so a fault can be for one client or for all. Faults change
what the relay does with bytes, never the bytes: a connection is passed on, held (open, and nothing moves in
either direction), slowed (each piece waits), refused or cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")
_PIECE = 1 << 16


@dataclass
class _Client:
    """The port of one client and what is done to its connections."""

    port: int = 0
    server: asyncio.Server | None = None
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    refusing: bool = False
    open: set[asyncio.StreamWriter] = field(default_factory=set)


class Relay:
    """Relay to `host:port`; `close` ends it. Safe to call from any thread but its own.

    Every fault takes the name of a client, or None for all that there are.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._clients: dict[str, _Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def port(self, client: str) -> int:
        """Where this client finds the server, on 127.0.0.1; opened at the first call."""
        return self._do(self._listen(client))

    def cut(self, client: str | None = None) -> int:
        """Reset every open connection; returns how many there were. New ones are taken."""
        return self._do(self._cut(client))

    def hold(self, client: str | None = None) -> None:
        """Let nothing through, and leave connections open; new ones are taken and held too."""
        self._do(self._set(client, flowing=False, answered=False))

    def hold_answers(self, client: str | None = None) -> None:
        """Let through what the client says, and nothing that the server answers."""
        self._do(self._set(client, answered=False))

    def slow(self, delay_s: float, client: str | None = None) -> None:
        """Let each piece of up to 64 KiB wait for `delay_s` seconds, in both directions."""
        self._do(self._set(client, delay_s=delay_s))

    def refuse(self, client: str | None = None) -> None:
        """Reset every new connection; open ones go on."""
        self._do(self._set(client, refusing=True))

    def heal(self, client: str | None = None) -> None:
        """End hold, slow and refuse. What was held goes on where it stopped."""
        self._do(self._set(client, flowing=True, answered=True, delay_s=0.0, refusing=False))

    def connections(self, client: str | None = None) -> int:
        """Open connections of clients."""
        return self._do(self._count(client))

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- in the relay's thread --------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    def _chosen(self, client: str | None) -> list[_Client]:
        return list(self._clients.values()) if client is None else [self._clients[client]]

    async def _listen(self, client: str) -> int:
        if client not in self._clients:
            one = _Client()
            one.flowing.set()
            one.answered.set()

            async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._take(one, reader, writer)

            one.server = await asyncio.start_server(take, "127.0.0.1", 0)
            one.port = int(one.server.sockets[0].getsockname()[1])
            self._clients[client] = one
        return self._clients[client].port

    async def _cut(self, client: str | None) -> int:
        gone = 0
        for one in self._chosen(client):
            gone += len(one.open)
            for writer in list(one.open):
                _reset(writer)
            one.open.clear()
        return gone

    async def _set(
        self,
        client: str | None,
        *,
        flowing: bool | None = None,
        answered: bool | None = None,
        delay_s: float | None = None,
        refusing: bool | None = None,
    ) -> None:
        for one in self._chosen(client):
            if flowing is not None:
                (one.flowing.set if flowing else one.flowing.clear)()
            if answered is not None:
                (one.answered.set if answered else one.answered.clear)()
            one.delay_s = one.delay_s if delay_s is None else delay_s
            one.refusing = one.refusing if refusing is None else refusing

    async def _count(self, client: str | None) -> int:
        return sum(len(one.open) for one in self._chosen(client))

    async def _close(self) -> None:
        for one in self._clients.values():
            if one.server is not None:
                one.server.close()
        await self._cut(None)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, one: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._tasks.add(me)
        one.open.add(writer)
        ends = [writer]
        try:
            if one.refusing:
                return
            await one.flowing.wait()
            answers, there = await asyncio.open_connection(*self._target)
            ends.append(there)
            if await _join(_pump(one, one.flowing, reader, there), _pump(one, one.answered, answers, writer)):
                for end in ends:  # an orderly end: the last words arrive before it
                    end.close()
                for end in ends:
                    await end.wait_closed()
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, or the relay ends: the client sees a reset
        finally:
            for end in ends:
                _reset(end)
            one.open.discard(writer)
            self._tasks.discard(me)


async def _join(*pumps: Coroutine[Any, Any, bool]) -> bool:
    """Both directions until one of them ends; whether that end was an orderly one."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return all(task.result() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    one: _Client, flowing: asyncio.Event, source: asyncio.StreamReader, sink: asyncio.StreamWriter
) -> bool:
    """Pass bytes on until either end is gone: True where the source said so (FIN), False where it broke."""
    try:
        while piece := await source.read(_PIECE):
            await flowing.wait()
            if one.delay_s:
                await asyncio.sleep(one.delay_s)
            sink.write(piece)
            await sink.drain()
    except OSError:
        return False
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, with RST: no FIN that looks like an end that was meant."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
