/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What an application can tell Forebay: that the calling thread works for a request, so whatever it writes and waits for is awaited;
 * and that its data is whole at this moment (forebay_mark).
 *
 *     int before = forebay_critical_begin();
 *     ... read the request, write, fsync, answer ...
 *     forebay_critical_end(before);
 *
 *     long long point = forebay_mark(NULL, "db", "nightly");
 *
 * A header alone; there is nothing to link. The hint stands in the thread's I/O priority, in bits that the kernel passes on with each
 * write. It costs two system calls, needs no privilege and no daemon, is inherited by threads and processes that are made, and
 * does no harm where there is no Forebay. A daemon may believe it of some users and control groups only (`forebay serve --hints`).
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define FOREBAY_HINT_CRITICAL 763
#define FOREBAY_HINT_SHIFT 3
#define FOREBAY_HINT_MASK (1023 << FOREBAY_HINT_SHIFT)
#define FOREBAY_WHO_PROCESS 1
#define FOREBAY_CLASS_SHIFT 13
/* Best effort, level 4: what a thread has that never chose an I/O priority. */
#define FOREBAY_DEFAULT (2 << FOREBAY_CLASS_SHIFT | 4)

/* Marks the calling thread; returns what forebay_critical_end takes, or -1 with errno set (EINVAL: a kernel before Linux 6.5 takes no hints). */
static inline int forebay_critical_begin(void)
{
	int before = (int)syscall(SYS_ioprio_get, FOREBAY_WHO_PROCESS, 0);
	if (before < 0)
		return -1;
	int plain = before >> FOREBAY_CLASS_SHIFT ? before & ~FOREBAY_HINT_MASK : FOREBAY_DEFAULT;
	int marked = plain | FOREBAY_HINT_CRITICAL << FOREBAY_HINT_SHIFT;
	return syscall(SYS_ioprio_set, FOREBAY_WHO_PROCESS, 0, marked) ? -1 : before;
}

/* Takes the mark away; 0, or -1 with errno set. */
static inline int forebay_critical_end(int before)
{
	if (before < 0)
		return -1;
	return (int)syscall(SYS_ioprio_set, FOREBAY_WHO_PROCESS, 0, before);
}

/* Longest name of a consistency point, in bytes. */
#define FOREBAY_LABEL_BYTES_MAX 64

/* Appends a JSON string; returns where it ends. Six bytes for each of the text's, and two, have room. */
static inline char *forebay_quote(char *out, const char *text)
{
	*out++ = '"';
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c < 0x20) {
			out += sprintf(out, "\\u%04x", c);
			continue;
		}
		if (c == '"' || c == '\\')
			*out++ = '\\';
		*out++ = (char)c;
	}
	*out++ = '"';
	return out;
}

/* Whether root or our own user listens on the other end, or in /run/forebay that directory's owner. */
static inline int forebay_believes(int fd, const char *path)
{
	struct { pid_t pid; uid_t uid; gid_t gid; } peer;
	socklen_t length = sizeof(peer);
	const char *directory = "/run/forebay/";
	struct stat of;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
		return 0;
	if (peer.uid == 0 || peer.uid == geteuid())
		return 1;
	return !strncmp(path, directory, strlen(directory)) && !strchr(path + strlen(directory), '/') &&
		!lstat("/run/forebay", &of) && of.st_uid == peer.uid;
}

/*
 * Declares a consistency point on a volume, with a name of at most 64 bytes, which may be empty or NULL. It has everything that was
 * acknowledged before the call and nothing issued after it returned; it returns the point's number, 1 or more, when the group that
 * ends there is committed on the backing's side, which takes as long as the backing takes. `socket` is the daemon's control socket, or
 * NULL for the default one. -1 with errno set: EINVAL for names that are too long, ECANCELED if the daemon refuses (as under a write
 * policy other than journaled; `forebay mark` says why), ETIMEDOUT if it says nothing for 30 seconds (while it works it says several
 * times a second how far it is), EPERM if a process of another user than root and the caller's listens there, EPROTO if its answer is not understood, and those of the system calls.
 */
static inline long long forebay_mark(const char *socket_path, const char *volume, const char *label)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char line[96 + 6 * (256 + FOREBAY_LABEL_BYTES_MAX)], answer[256], *end = line;
	const struct timeval silence = { .tv_sec = 30 };
	const char *found = "{\"result\":{\"points\":[";
	const char *progress = "{\"progress\":";
	size_t got = 0;
	ssize_t n = 0;
	int length;

	if (!label)
		label = "";
	if (strlen(volume) > 256 || strlen(label) > FOREBAY_LABEL_BYTES_MAX) {
		errno = EINVAL;
		return -1;
	}
	if (socket_path) {
		length = snprintf(at.sun_path, sizeof(at.sun_path), "%s", socket_path);
	} else {
		const char *directory = geteuid() ? getenv("XDG_RUNTIME_DIR") : "/run";
		if (!directory) {
			errno = ENOENT;
			return -1;
		}
		length = snprintf(at.sun_path, sizeof(at.sun_path), "%s/forebay/%s.sock", directory, volume);
	}
	if (length < 0 || (size_t)length >= sizeof(at.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	end += sprintf(end, "{\"command\":\"mark\",\"volumes\":[");
	end = forebay_quote(end, volume);
	end += sprintf(end, "],\"label\":");
	end = forebay_quote(end, label);
	end += sprintf(end, ",\"progress\":true}\n");

	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	/* Also how long a daemon may take to take the connection. */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof(silence));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence));
	if (connect(fd, (struct sockaddr *)&at, sizeof(at)))
		goto failed;
	/* Whoever else listens there could make up a point that is none. */
	if (!forebay_believes(fd, at.sun_path)) {
		errno = EPERM;
		goto failed;
	}
	for (char *from = line; from < end; from += n) {
		n = send(fd, from, (size_t)(end - from), MSG_NOSIGNAL);
		if (n < 0 && errno != EINTR)
			goto failed;
		n = n < 0 ? 0 : n;
	}
	/* A number, or the beginning of a refusal, behind lines that say how far the daemon is. */
	while (got < sizeof(answer) - 1) {
		char *next = (char *)memchr(answer, '\n', got);
		if (next && got >= strlen(progress) && !memcmp(answer, progress, strlen(progress))) {
			got -= (size_t)(++next - answer);
			memmove(answer, next, got);
			continue;
		}
		if (next)
			break;
		n = recv(fd, answer + got, sizeof(answer) - 1 - got, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			goto failed;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	close(fd);
	answer[got] = 0;
	if (!strncmp(answer, found, strlen(found))) {
		long long point = strtoll(answer + strlen(found), &end, 10);
		if (point > 0 && *end == ']')
			return point;
	}
	errno = strncmp(answer, "{\"error\":", 9) ? EPROTO : ECANCELED;
	return -1;

failed:
	n = errno == EAGAIN || errno == EINPROGRESS ? ETIMEDOUT : errno;
	close(fd);
	errno = (int)n;
	return -1;
}

#endif
