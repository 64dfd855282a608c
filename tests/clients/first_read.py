#!/usr/bin/env python3
"""Starts a command and prints the milliseconds until it has served its first read over NBD, and its process id.

    first_read.py SOCKET OFFSET COMMAND ARG...

The command goes on running; its output goes to the file `ready` and its messages to `daemon.log`.
"""

import os
import socket
import struct
import subprocess
import sys
import time

PATIENCE_S = 600


def exactly(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            sys.exit("the server ended the connection")
        data += piece
    return data


def read(connection, offset):
    """One block, by the newstyle handshake with the default export."""
    exactly(connection, 18)
    connection.sendall(struct.pack("!I8sII", 3, b"IHAVEOPT", 1, 0))
    exactly(connection, 10)
    connection.sendall(struct.pack("!IHHQQI", 0x25609513, 0, 0, 1, offset, 4096))
    _, error, _ = struct.unpack("!IIQ", exactly(connection, 16))
    if error:
        sys.exit(f"the read failed with error {error}")
    exactly(connection, 4096)


def main():
    path, offset, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if os.path.exists(path):
        os.unlink(path)
    begun = time.monotonic()
    with open("ready", "w") as out, open("daemon.log", "a") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True)
    while time.monotonic() < begun + PATIENCE_S:
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
        except OSError:
            connection.close()
            if child.poll() is not None:
                sys.exit(f"the command ended with {child.returncode}")
            time.sleep(0.001)
            continue
        read(connection, offset)
        print(f"{(time.monotonic() - begun) * 1000:.0f} {child.pid}")
        return
    sys.exit("no answer")


main()
