#!/usr/bin/env bash
# A search with SEEK_DATA on a FUSE file keeps all writers of the file waiting until the daemon has answered it: the kernel holds the inode's lock for
# the whole round trip. Reads with direct I/O do not wait. A daemon that puts such a search off, because it is background work, holds up its writers.
#
# Seen with: Linux 6.18, libfuse 3.14.0 (Debian bookworm's libfuse3-dev and libfuse3-3 3.14.0-4). The daemon below answers a search after 500 ms, and reads
# and writes at once. A write that begins 100 ms after a search takes some 400 ms; a read then, and a write alone, far below 100 ms.
#
# Exit code: 0 as described, 1 otherwise, 77 if it cannot be tried here. Needs root, a C compiler and Debian's package archive.
set -euo pipefail

[[ $(id -u) == 0 && -e /dev/fuse ]] || { echo "SKIP: needs root and /dev/fuse"; exit 77; }
dir=$(mktemp -d)
daemon=
cleanup() {
    umount -l "$dir/mnt" 2>/dev/null || true
    [[ -z $daemon ]] || kill "$daemon" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"
apt-get -o APT::Sandbox::User=root download -qq libfuse3-dev=3.14.0-4 libfuse3-3=3.14.0-4 2>/dev/null || { echo "SKIP: these packages are not to be had"; exit 77; }
for package in *.deb; do dpkg-deb -x "$package" .; done
libs=$(dirname "$(find . -name 'libfuse3.so.3.14*' | head -n 1)")

cat >late.c <<'C'
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void getattr(fuse_req_t r, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = { .st_ino = ino, .st_mode = S_IFREG | 0600, .st_nlink = 1, .st_size = 1 << 30 };
	fuse_reply_attr(r, &st, 1.0);
}
static void open_file(fuse_req_t r, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->direct_io = 1;
	fuse_reply_open(r, fi);
}
static void write_file(fuse_req_t r, fuse_ino_t ino, const char *b, size_t n, off_t o, struct fuse_file_info *fi)
{
	fuse_reply_write(r, n);
}
static void read_file(fuse_req_t r, fuse_ino_t ino, size_t n, off_t o, struct fuse_file_info *fi)
{
	static char zeroes[1 << 20];
	fuse_reply_buf(r, zeroes, n < sizeof(zeroes) ? n : sizeof(zeroes));
}
static void seek_file(fuse_req_t r, fuse_ino_t ino, off_t o, int whence, struct fuse_file_info *fi)
{
	usleep(500000);
	fuse_reply_lseek(r, o);
}
static const struct fuse_lowlevel_ops ops = { .getattr = getattr, .open = open_file, .read = read_file, .write = write_file, .lseek = seek_file };

int main(int argc, char **argv)
{
	char *args[] = { argv[0], "-o", "rootmode=100000" };
	struct fuse_args fa = FUSE_ARGS_INIT(1, args);
	struct fuse_session *s = fuse_session_new(&fa, &ops, sizeof(ops), NULL);
	if (!s || fuse_session_mount(s, argv[1]))
		return 1;
	struct fuse_loop_config *c = fuse_loop_cfg_create();
	fuse_session_loop_mt(s, c);
	return 0;
}
C
cat >try.py <<'P'
import os, sys, threading, time
fd = os.open(sys.argv[1], os.O_RDWR)
def timed(what):
    begun = time.monotonic()
    what()
    return round((time.monotonic() - begun) * 1000)
def beside_search(what):
    search = threading.Thread(target=lambda: os.lseek(fd, 0, os.SEEK_DATA))
    search.start()
    time.sleep(0.1)
    took = timed(what)
    search.join()
    return took
write = lambda: os.pwrite(fd, b"x" * 4096, 1 << 20)
read = lambda: os.pread(fd, 4096, 1 << 20)
print(timed(write), beside_search(write), beside_search(read))
P
gcc -O1 -Wno-unused-parameter -I usr/include/fuse3 late.c -o late -L "$libs" -l:"$(basename "$(find . -name 'libfuse3.so.3.14*' | head -n 1)")" -lpthread
touch mnt
LD_LIBRARY_PATH=$libs ./late "$dir/mnt" 2>daemon.log &
daemon=$!
for _ in {1..100}; do
    grep -q " $dir/mnt fuse" /proc/mounts && break
    sleep 0.05
done
read -r alone writing reading < <(python3 try.py "$dir/mnt")
echo "Linux $(uname -r), libfuse 3.14.0; 100 ms after a search began that is answered after 500 ms:"
echo "a write takes $writing ms (alone $alone ms), a read $reading ms"
((alone < 100 && reading < 100 && writing >= 300)) || { echo "this is not what was seen before"; exit 1; }
