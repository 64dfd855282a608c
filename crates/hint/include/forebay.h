/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Forebay's hint: the calling thread works for a request, so whatever it writes and waits for is awaited.
 *
 *     int before = forebay_critical_begin();
 *     ... read the request, write, fsync, answer ...
 *     forebay_critical_end(before);
 *
 * A header alone; there is nothing to link. The hint stands in the thread's I/O priority, in bits that the kernel passes on with each
 * write. It costs two system calls, needs no privilege and no daemon, is inherited by threads and processes that are made, and
 * does no harm where there is no Forebay.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <sys/syscall.h>
#include <unistd.h>

#define FOREBAY_HINT_CRITICAL 763
#define FOREBAY_HINT_SHIFT 3
#define FOREBAY_HINT_MASK (1023 << FOREBAY_HINT_SHIFT)
#define FOREBAY_WHO_PROCESS 1
#define FOREBAY_CLASS_SHIFT 13
/* Best effort, level 4: what a thread has that never chose an I/O priority. */
#define FOREBAY_DEFAULT (2 << FOREBAY_CLASS_SHIFT | 4)

/* Marks the calling thread; returns what forebay_critical_end takes, or -1 with errno set. */
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

#endif
