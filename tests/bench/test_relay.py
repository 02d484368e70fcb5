"""Does the relay of the chaos run do to connections what it says, to one client and to no other?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.chaotic.relay import Relay

GOOD_BYE = b"bye"


HEARD: list[bytes] = []


def _echo(server: socket.socket) -> None:
    def talk(peer: socket.socket) -> None:
        with peer:
            try:
                while (data := peer.recv(1 << 16)) != GOOD_BYE and data:
                    HEARD.append(data)
                    peer.sendall(data)
                peer.sendall(b"." * 100_000)  # last words
            except OSError:
                pass

    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=talk, args=(peer,), daemon=True).start()


@pytest.fixture
def relay() -> Iterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        made = Relay("127.0.0.1", server.getsockname()[1])
        yield made
        made.close()
        server.shutdown(socket.SHUT_RDWR)


def connect(relay: Relay, client: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port(client)), 5)


def ask(peer: socket.socket, data: bytes = b"x", timeout_s: float = 5.0) -> bytes:
    """What comes back; TimeoutError, ConnectionError."""
    peer.settimeout(timeout_s)
    peer.sendall(data)
    return answer(peer, len(data))


def answer(peer: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = peer.recv(size - len(got))
        if not piece:
            raise ConnectionError("ended")
        got += piece
    return got


def test_bytes_go_through_whole(relay: Relay) -> None:
    data = bytes(range(256)) * 4096
    with connect(relay, "a") as a:
        # a thread sends: two full buffers would wait for each other
        sender = threading.Thread(target=a.sendall, args=(data,))
        sender.start()
        assert answer(a, len(data)) == data
        sender.join()
    assert relay.port("a") == relay.port("a")
    assert relay.port("a") != relay.port("b")


def test_last_words_arrive_before_an_orderly_end(relay: Relay) -> None:
    with connect(relay, "a") as a:
        a.settimeout(5)
        a.sendall(GOOD_BYE)
        assert answer(a, 100_000) == b"." * 100_000
        assert a.recv(1) == b""


def test_a_cut_is_a_reset_for_one_client(relay: Relay) -> None:
    with connect(relay, "a") as a, connect(relay, "b") as b:
        assert (ask(a), ask(b)) == (b"x", b"x")
        assert relay.cut("a") == 1
        with pytest.raises(ConnectionResetError):
            a.recv(1)
        assert ask(b) == b"x"
        with connect(relay, "a") as again:
            assert ask(again) == b"x"
        assert relay.cut() >= 1  # the one just closed may not be gone yet
        with pytest.raises(ConnectionResetError):
            b.recv(1)


def test_what_is_held_stays_open_and_goes_on_later(relay: Relay) -> None:
    with connect(relay, "a") as a, connect(relay, "b") as b:
        assert ask(a) == b"x"
        relay.hold("a")
        with pytest.raises(TimeoutError):
            ask(a, b"held", 0.3)
        with connect(relay, "a") as new, pytest.raises(TimeoutError):
            ask(new, b"y", 0.3)
        assert ask(b) == b"x"
        assert relay.connections("a") >= 1
        relay.heal("a")
        a.settimeout(5)
        assert answer(a, 4) == b"held"


def test_where_answers_are_held_the_server_still_hears(relay: Relay) -> None:
    with connect(relay, "a") as a, connect(relay, "b") as b:
        assert ask(a) == b"x"
        relay.hold_answers("a")
        with pytest.raises(TimeoutError):
            ask(a, b"heard", 0.3)
        assert ask(b) == b"x"
        HEARD.clear()
        a.sendall(b"and this")
        deadline = time.monotonic() + 5
        while b"and this" not in HEARD:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        relay.heal("a")
        a.settimeout(5)
        assert answer(a, 13) == b"heardand this"


def test_slow_waits_both_ways(relay: Relay) -> None:
    with connect(relay, "a") as a:
        assert ask(a) == b"x"
        relay.slow(0.2, "a")
        start = time.monotonic()
        assert ask(a) == b"x"
        assert time.monotonic() - start >= 0.4
        relay.heal()
        assert ask(a) == b"x"


def test_refused_are_new_connections_only(relay: Relay) -> None:
    with connect(relay, "a") as a:
        assert ask(a) == b"x"
        relay.refuse("a")
        with pytest.raises(ConnectionError), connect(relay, "a") as new:
            ask(new)
        assert ask(a) == b"x"
        relay.heal("a")
        with connect(relay, "a") as new:
            assert ask(new) == b"x"


def test_a_server_that_is_gone_ends_the_client(relay: Relay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    other = Relay("127.0.0.1", port)
    try:
        with pytest.raises(ConnectionError), connect(other, "a") as a:
            ask(a)
        deadline = time.monotonic() + 5
        while other.connections():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        other.close()
