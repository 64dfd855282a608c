#!/usr/bin/env python3
"""Maps a file by SEEK_DATA and SEEK_HOLE, as a program that copies it would.

walk_holes.py FILE            once; prints the bytes of data and the number of extents
walk_holes.py FILE --forever  again and again, until it is killed
"""
import errno
import os
import sys


def walk(fd, size):
    """Yields (start, end) of each extent of data; neighbours are one."""
    at, begun = 0, None
    while at < size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            break
        if begun is not None and data > at:
            yield begun, at
            begun = None
        begun = data if begun is None else begun
        at = os.lseek(fd, data, os.SEEK_HOLE)
        assert at > data, f"no progress at {data}"
    if begun is not None:
        yield begun, at


fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.lseek(fd, 0, os.SEEK_END)
while True:
    extents = list(walk(fd, size))
    if "--forever" not in sys.argv:
        break
print(sum(end - start for start, end in extents), len(extents))
