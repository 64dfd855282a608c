"""One writer, one or more volumes: write n goes to any of them, and only after write n-1 was acknowledged.

write SEED SOCKET...   writes until a volume goes away; prints how many writes were acknowledged
judge SEED FILE...     the number of the write up to which the images have everything, and nothing later; exit code 1 if there is none
"""

import random
import socket
import struct
import sys

BLOCK = 4096
BLOCKS = 2048


def places(seed, volumes):
    """Volume and block of each write."""
    dice = random.Random(int(seed))
    while True:
        yield dice.randrange(volumes), dice.randrange(BLOCKS)


class Volume:
    """An NBD client that does one thing at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.take(18)
        # Fixed newstyle, no zeroes; the default export.
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.take(10)

    def take(self, count):
        taken = b""
        while len(taken) < count:
            more = self.socket.recv(count - len(taken))
            if not more:
                raise ConnectionError("the volume has gone")
            taken += more
        return taken

    def write(self, block, data):
        header = struct.pack(">IHHQQI", 0x25609513, 0, 1, block, block * BLOCK, len(data))
        self.socket.sendall(header + data)
        _, error, _ = struct.unpack(">IIQ", self.take(16))
        if error:
            raise ConnectionError(f"the volume answers with error {error}")


def write(seed, *sockets):
    volumes = [Volume(path) for path in sockets]
    number = 0
    try:
        for volume, block in places(seed, len(volumes)):
            volumes[volume].write(block, struct.pack("<Q", number + 1) * (BLOCK // 8))
            number += 1
    except OSError:
        print(number)


def judge(seed, *files):
    held = {}
    for volume, path in enumerate(files):
        with open(path, "rb") as image:
            for block in range(BLOCKS):
                numbers = set(struct.unpack("<512Q", image.read(BLOCK)))
                if len(numbers) > 1:
                    sys.exit(f"block {block} of {path} is torn: {sorted(numbers)}")
                held[volume, block] = numbers.pop()
    newest = max(held.values())
    expected = dict.fromkeys(held, 0)
    for number, place in zip(range(1, newest + 1), places(seed, len(files))):
        expected[place] = number
    for (volume, block), number in held.items():
        if number != expected[volume, block]:
            sys.exit(f"write {newest} is there, but block {block} of {files[volume]} has {number} instead of {expected[volume, block]}")
    print(newest)


{"write": write, "judge": judge}[sys.argv[1]](*sys.argv[2:])
