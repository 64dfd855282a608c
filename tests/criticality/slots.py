"""slots.py critical|background|checkpointer DIRECTORY SECONDS: a load that is short of slots of the disk's queue.

The background task dirties every other page of a file and has them written back, again and again: more requests than the queue has slots. A checkpointer
waits for these writes, so that they are synchronous ones. The critical task writes past the page cache and through it, and waits for each write. It
prints how many of each it has done.
"""
import ctypes
import mmap
import os
import sys
import time

role, directory, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with open("/proc/self/comm", "w") as comm:
    comm.write("fb-critical" if role == "critical" else "fb-back")
libc = ctypes.CDLL(None, use_errno=True)
PAGES = 4096
SYNC_FILE_RANGE_WRITE = 2


def opened(name, size, flags=0):
    """A file that has all its blocks already, so that writing to it needs no journal."""
    path = os.path.join(directory, name)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.fstat(file).st_size < size:
        os.pwrite(file, bytes(size), 0)
        os.fsync(file)
    return os.open(path, os.O_RDWR | flags)


page = mmap.mmap(-1, 4096)
page.write(b"x" * 4096)
if role == "critical":
    direct, cached = opened("direct", 1 << 20, os.O_DIRECT), opened("cached", 1 << 20)
else:
    file = opened("background", PAGES * 8192)
end = time.monotonic() + seconds
done = 0
if role == "critical":
    while time.monotonic() < end:
        os.pwritev(direct, [page], done % 256 * 4096)
        os.pwrite(cached, page, done % 256 * 4096)
        os.fdatasync(cached)
        done += 1
        time.sleep(0.002)
    print(done)
else:
    while time.monotonic() < end:
        for number in range(PAGES):
            os.pwrite(file, page, number * 8192)
        if role == "checkpointer":
            os.fsync(file)
        elif libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), SYNC_FILE_RANGE_WRITE):
            sys.exit("sync_file_range failed")
