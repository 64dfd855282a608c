#!/usr/bin/env python3
"""Writes to Redis and remembers which writes were acknowledged; checks that they are all there.

    redis_writes.py write SOCKET JOURNAL --clients N     until the server goes away
    redis_writes.py check SOCKET JOURNAL

Each client numbers its writes 1, 2, 3 ... . Write n sets the key `c:CLIENT:(n mod 100)` to n, and pushes n to the list
`l:CLIENT`, as one MULTI/EXEC. The journal (a file that is not on the volume under test) gets a line for each
acknowledged one. So after any crash a client's list is 1 to k without a gap, its keys hold the newest numbers up to k, and
k is at least what the journal says, at most one more than what was asked for.
"""

import socket
import sys

from journal import acknowledged, write

KEYS = 100


class Gone(Exception):
    """The server does not answer any more."""


class Connection:
    """One connection over a unix socket; one command at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        try:
            self.socket.connect(path)
        except OSError as e:
            raise Gone(str(e)) from e
        self.file = self.socket.makefile("rb")

    def answer(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise Gone("end of connection")
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"-":
                raise Gone(rest.decode())
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                length = int(rest)
                return None if length < 0 else self.file.read(length + 2)[:-2]
            case _:
                return [self.answer() for _ in range(int(rest))]

    def ask(self, *commands):
        """Sends commands in one piece and returns the last answer."""
        data = b""
        for command in commands:
            words = [str(word).encode() for word in command]
            data += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        try:
            self.socket.sendall(data)
            return [self.answer() for _ in commands][-1]
        except OSError as e:
            raise Gone(str(e)) from e


def work(path, client, done):
    """One write after the other until the server goes away."""
    try:
        connection = Connection(path)
        seq = connection.ask(("LLEN", f"l:{client}"))
        while True:
            seq += 1
            connection.ask(
                ("MULTI",),
                ("SET", f"c:{client}:{seq % KEYS}", seq),
                ("RPUSH", f"l:{client}", seq),
                ("EXEC",),
            )
            done(seq)
    except Gone:
        return


def check(path, journal):
    """Prints how many writes are there; ends with 1 if one is missing."""
    connection = Connection(path)
    wrong, total = [], 0
    for client, seq in acknowledged(journal).items():
        there = [int(n) for n in connection.ask(("LRANGE", f"l:{client}", 0, -1))]
        last = len(there)
        total += last
        if last < seq:
            wrong.append(f"client {client}: write {seq} was acknowledged, the last one there is {last}")
        if there != list(range(1, last + 1)):
            wrong.append(f"client {client}: the list has gaps")
        for n in range(max(1, last - KEYS + 1), last + 1):
            value = connection.ask(("GET", f"c:{client}:{n % KEYS}"))
            if value is None or int(value) != n:
                wrong.append(f"client {client}: half a transaction: key of write {n} holds {value}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(total)


def main():
    match sys.argv[1:]:
        case ["write", path, journal, "--clients", clients]:
            write(journal, int(clients), lambda client, done: work(path, client, done))
        case ["check", path, journal]:
            check(path, journal)
        case _:
            sys.exit(__doc__)


main()
