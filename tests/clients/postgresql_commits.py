#!/usr/bin/env python3
"""Commits transactions to PostgreSQL and remembers which were acknowledged; checks that they are all there.

    postgresql_commits.py write SOCKET_DIR JOURNAL --clients N     until the server goes away
    postgresql_commits.py check SOCKET_DIR JOURNAL

Each client commits transactions numbered 1, 2, 3 ...: a row in `ledger`, and its number in its row of `counter`. The
journal (a file that is not on the volume under test) gets a line for each acknowledged one. So after any crash a client
has the rows 1 to k without a gap, its counter says k, and k is at least what the journal says.

The protocol is PostgreSQL's version 3, spoken directly: nothing needs to be installed, and an acknowledgement is the
server's own `CommandComplete` of the transaction.
"""

import os
import random
import socket
import struct
import sys

from journal import acknowledged, write

USER = "postgres"
DATABASE = "postgres"

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (client int, seq bigint, filler text, PRIMARY KEY (client, seq));
CREATE TABLE IF NOT EXISTS counter (client int PRIMARY KEY, seq bigint);
"""


class Gone(Exception):
    """The server does not answer any more."""


class Refused(Exception):
    """The server answered with an error."""


class Connection:
    """One connection over a unix socket, with trust authentication."""

    def __init__(self, directory):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        try:
            self.socket.connect(os.path.join(directory, ".s.PGSQL.5432"))
            words = b"".join(w.encode() + b"\0" for w in ("user", USER, "database", DATABASE)) + b"\0"
            self.socket.sendall(struct.pack("!II", len(words) + 8, 196608) + words)
            self.until_ready()
        except OSError as e:
            raise Gone(str(e)) from e

    def take(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise Gone("end of connection")
            data += piece
        return data

    def until_ready(self):
        """Reads answers up to ReadyForQuery; returns the rows. An error of the server is raised."""
        rows, error = [], None
        while True:
            kind, length = struct.unpack("!cI", self.take(5))
            body = self.take(length - 4)
            if kind == b"Z":
                if error:
                    raise Refused(error)
                return rows
            if kind == b"E":
                fields = {f[:1]: f[1:] for f in body.split(b"\0") if f}
                error = fields.get(b"M", b"").decode(errors="replace")
                if fields.get(b"S") in (b"FATAL", b"PANIC"):
                    raise Gone(error)
            if kind == b"D":
                rows.append(self.row(body))

    @staticmethod
    def row(body):
        columns, at = [], 2
        for _ in range(struct.unpack_from("!H", body)[0]):
            (length,) = struct.unpack_from("!i", body, at)
            at += 4
            columns.append(None if length < 0 else body[at : at + length].decode())
            at += max(length, 0)
        return columns

    def query(self, text):
        data = text.encode() + b"\0"
        try:
            self.socket.sendall(b"Q" + struct.pack("!I", len(data) + 4) + data)
            return self.until_ready()
        except OSError as e:
            raise Gone(str(e)) from e


def work(directory, client, done):
    """Commits one transaction after the other until the server goes away."""
    try:
        connection = Connection(directory)
        rows = connection.query(f"SELECT seq FROM counter WHERE client = {client}")
        seq = int(rows[0][0])
        while True:
            seq += 1
            filler = "x" * random.randrange(1500)
            # One message is one transaction.
            connection.query(
                f"INSERT INTO ledger VALUES ({client}, {seq}, '{filler}');"
                f"UPDATE counter SET seq = {seq} WHERE client = {client}"
            )
            done(seq)
    except (Gone, Refused):
        # The disk below is gone; what the server says of it while it goes down is its own affair.
        return


def prepare(directory, clients):
    connection = Connection(directory)
    connection.query(SCHEMA)
    for client in range(clients):
        connection.query(f"INSERT INTO counter VALUES ({client}, 0) ON CONFLICT DO NOTHING")


def check(directory, journal):
    """Prints how many commits are there; ends with 1 if one is missing."""
    connection = Connection(directory)
    newest = acknowledged(journal)
    if not newest:
        print(0)
        return
    found = {
        int(client): (int(count), int(least), int(most))
        for client, count, least, most in connection.query(
            "SELECT client, count(*), min(seq), max(seq) FROM ledger GROUP BY client"
        )
    }
    counters = {int(c): int(seq) for c, seq in connection.query("SELECT client, seq FROM counter")}
    wrong = []
    for client, seq in newest.items():
        count, least, most = found.get(client, (0, 1, 0))
        if most < seq:
            wrong.append(f"client {client}: commit {seq} was acknowledged, the last one there is {most}")
        if least != 1 or count != most:
            wrong.append(f"client {client}: {count} rows from {least} to {most}")
        if counters.get(client) != most:
            wrong.append(f"client {client}: half a transaction: counter {counters.get(client)}, rows to {most}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(sum(count for count, _, _ in found.values()))


def main():
    match sys.argv[1:]:
        case ["write", directory, journal, "--clients", clients]:
            prepare(directory, int(clients))
            write(journal, int(clients), lambda client, done: work(directory, client, done))
        case ["check", directory, journal]:
            check(directory, journal)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
