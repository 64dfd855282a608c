#!/usr/bin/env bash
# A multishot poll of io_uring outlives its removal where data arrived since the last enter. On a ring with deferred task work (IORING_SETUP_DEFER_TASKRUN)
# the wake-up is only queued then. The enter looks at the removal first, answers it with EALREADY, and the poll stays armed: each later arrival
# completes it again, and the ring keeps the file. Who takes EALREADY for "it is ending" never gets rid of it. IORING_OP_ASYNC_CANCEL by user data
# does end it in the same moment: it answers 0, the poll ends with ECANCELED, and nothing comes afterwards.
#
# Seen with: Linux 6.18, liburing 2.3 (Debian bookworm's liburing-dev and liburing2 2.3-3). Output:
#   removal: -114, completions for one byte that arrives later: 1
#   cancel: 0, completions for one byte that arrives later: 0
#
# Exit code: 0 as described, 1 otherwise, 77 if it cannot be tried here. Needs a C compiler and Debian's package archive.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -o APT::Sandbox::User=root download -qq liburing-dev=2.3-3 liburing2=2.3-3 2>/dev/null || { echo "SKIP: these packages are not to be had"; exit 77; }
for package in *.deb; do dpkg-deb -x "$package" .; done
libs=$(dirname "$(find . -name 'liburing.so.2*' | head -n 1)")

cat >removal.c <<'C'
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POLL = 1, END = 2 };

/* Takes what completes within 100 ms: how often the poll did and goes on, and what the request to end it was answered. */
static int armed_completions(struct io_uring *ring, int *answer)
{
	int seen = 0;
	struct __kernel_timespec patience = { .tv_nsec = 100000000 };
	struct io_uring_cqe *cqe;
	while (io_uring_wait_cqe_timeout(ring, &cqe, &patience) == 0) {
		if (cqe->user_data == END)
			*answer = cqe->res;
		else if (cqe->user_data == POLL && cqe->res >= 0)
			seen++;
		io_uring_cqe_seen(ring, cqe);
	}
	return seen;
}

static void try_it(const char *how, int cancel)
{
	struct io_uring ring;
	int sockets[2], answer = 1;
	if (io_uring_queue_init(16, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0)
		exit(77);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	io_uring_prep_poll_multishot(sqe, sockets[0], POLLIN);
	sqe->user_data = POLL;
	io_uring_submit(&ring);

	/* A byte arrives, and then the poll is to end. */
	if (write(sockets[1], "a", 1) != 1)
		exit(77);
	sqe = io_uring_get_sqe(&ring);
	if (cancel)
		io_uring_prep_cancel64(sqe, POLL, 0);
	else
		io_uring_prep_poll_remove(sqe, POLL);
	sqe->user_data = END;
	io_uring_submit(&ring);
	armed_completions(&ring, &answer);

	/* One more byte, when all of that is over. */
	if (write(sockets[1], "b", 1) != 1)
		exit(77);
	int later = 1;
	later = armed_completions(&ring, &answer);
	printf("%s: %d, completions for one byte that arrives later: %d\n", how, answer, later);
	io_uring_queue_exit(&ring);
}

int main(void)
{
	try_it("removal", 0);
	try_it("cancel", 1);
}
C
gcc -Wall -o removal removal.c -I usr/include -L "$libs" -Wl,-rpath,"$PWD/$libs" -l:"$(basename "$(find . -name 'liburing.so.2*' -type l | head -n 1)")"
./removal | tee output || exit 77
diff output - <<'END'
removal: -114, completions for one byte that arrives later: 1
cancel: 0, completions for one byte that arrives later: 0
END
