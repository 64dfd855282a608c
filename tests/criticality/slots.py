"""slots.py critical|background DIRECTORY SECONDS: a load that is short of slots of the disk's queue.

The background task dirties every other page of a file and has them written back, again and again: more requests than the queue has slots. The critical one
writes past the page cache and through it, and waits for each write. It prints how many it has done.
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


def opened(name, flags=0):
    file = os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | flags, 0o600)
    os.posix_fallocate(file, 0, PAGES * 8192)
    return file


page = mmap.mmap(-1, 4096)
page.write(b"x" * 4096)
end = time.monotonic() + seconds
done = 0
if role == "critical":
    direct, cached = opened("direct", os.O_DIRECT), opened("cached")
    while time.monotonic() < end:
        os.pwritev(direct, [page], done % PAGES * 4096)
        os.pwrite(cached, page, done % PAGES * 4096)
        os.fdatasync(cached)
        done += 1
        time.sleep(0.002)
    print(done)
else:
    file = opened("background")
    while time.monotonic() < end:
        for number in range(PAGES):
            os.pwrite(file, page, number * 8192)
        if libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), SYNC_FILE_RANGE_WRITE):
            sys.exit("sync_file_range failed")
