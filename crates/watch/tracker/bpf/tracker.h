/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the tracker's programs and the daemon share. `src/wire.rs` mirrors it, and a test holds the two together.
 * All fields are in the machine's byte order: both ends run on the same machine.
 */
#ifndef FOREBAY_TRACKER_H
#define FOREBAY_TRACKER_H

/* Limits. */
#define FB_DISKS_MAX 64		/* attached devices */
#define FB_TASKS_MAX 32768	/* tasks that are remembered; the longest unused one gives way, but for one that is blocked */
#define FB_TIDS_MAX 4194304	/* numbers that the kernel has for tasks (PID_MAX_LIMIT) */
#define FB_CHAIN_MAX 8		/* links of a chain of blocked tasks that are followed */
#define FB_FRAMES_MAX 24	/* frames of a stack that are looked at */
#define FB_LOCKS_MAX 1024	/* names of lightweight locks, and locks held by a task of each name */
#define FB_LOCK_NS_MAX 10000000000ull /* whose lightweight lock was not given back for so long has none: it has ended, or its probes have */
#define FB_HOLDERS_MAX 8	/* tasks that are remembered as holders of locks of one name, or that wait in one of the ways that others look at */
#define FB_SOCKETS_MAX 16384	/* accepted TCP connections that are remembered */
#define FB_REQUEST_NS_MAX 10000000000ull /* who has not answered for so long does not work for a request */
#define FB_RATES_MAX 32		/* rules with a rate */
#define FB_RANGES_MAX 32	/* functions of the kernel that are known */
#define FB_TAGS_BYTES 2097152	/* ring of tags; a full one drops, and counts */
#define FB_SLOTS_BYTES 65536	/* ring of slots; the same */
#define FB_SIGNALS_BYTES 1048576	/* ring of signals; the same */

/* What a task waits for. */
#define FB_WAIT_NONE 0
#define FB_WAIT_MUTEX 1		/* a kernel mutex; the other side is its owner */
#define FB_WAIT_RWSEM 2		/* a kernel rwsem; its writer, or its last reader */
#define FB_WAIT_FUTEX 3		/* a user-space lock; the owner of the pthread mutex */
#define FB_WAIT_JOURNAL 4	/* a commit of the journal, or room in it */
#define FB_WAIT_WRITEBACK 5	/* a page that is being written */
#define FB_WAIT_BUFFER 6	/* the lock of a page, of which is not known who holds it */
#define FB_WAIT_SLOT 7		/* a slot of the disk's queue, or of the block layer's write-back throttle */
#define FB_WAIT_FLUSH 8		/* a flush of the device's cache */
#define FB_WAIT_IO 9		/* its own I/O */
#define FB_WAIT_LWLOCK 10	/* a lightweight lock of PostgreSQL; the other side is who holds locks of its name */
#define FB_WAIT_CONDITION 11	/* something in user space that has no owner, in the midst of a request */
#define FB_WAIT_DIRTY 12		/* less dirty memory, before it may change more pages */
#define FB_WAIT_KINDS 13

/* Kinds of signals. */
#define FB_SIGNAL_FORK 1	/* tid has a child, other */
#define FB_SIGNAL_EXEC 2
#define FB_SIGNAL_EXIT 3
#define FB_SIGNAL_WAIT 4	/* a critical task, or one that inherited, begins to wait for other */
#define FB_SIGNAL_WAITED 5	/* that of a critical task is over after `value` ns */
#define FB_SIGNAL_SEEN 6	/* a task wrote to a volume for the first time */

/* How a task is critical. */
#define FB_CRITICAL_NONE 0
#define FB_CRITICAL_DIRECT 1
#define FB_CRITICAL_INHERITED 2
/* What the rules may say besides: */
#define FB_CRITICAL_REQUESTS 3	/* critical from the read of a request on an accepted socket to the answer */
#define FB_CRITICAL_NEVER 4	/* not critical, whatever it says of itself and whoever waits for it */
/* Of a write: */
#define FB_CRITICAL_HINTED 5	/* as FB_CRITICAL_DIRECT, by the task's own word */

/*
 * The hint in a task's I/O priority (ioprio_set(2), bits 3 to 12) that says that it works for a request. The kernel keeps it for
 * device hints, of which it uses 1 to 7.
 */
#define FB_HINT_SHIFT 3
#define FB_HINT_MASK 1023
#define FB_HINT_CRITICAL 763

#define FB_FLUSH_FLAGS 393216	/* of bi_opf: REQ_FUA and REQ_PREFLUSH */

/*
 * A write that was queued to an attached device. Without a page it ends before its mapping, without a file before its name: the first, of
 * what goes past the page cache, takes one line of the cache in the ring, with its header, where all are such.
 */
struct fb_tag {
	unsigned long long sector;	/* of 512 bytes, from the disk's start */
	unsigned int bytes;
	unsigned int device;		/* major << 20 | minor of the disk */
	unsigned int flags;		/* bi_opf */
	unsigned int tid;
	unsigned int waiter;		/* inherited from this task, or 0 */
	unsigned char critical;		/* FB_CRITICAL_NONE, _DIRECT, _HINTED, _INHERITED or _NEVER */
	unsigned char via;		/* FB_WAIT_* by which it was inherited */
	unsigned short ioprio;
	char comm[16];
	unsigned int payers;		/* of an inherited one: the rates of those who wait for it, see below; 0 if one has none */
	unsigned int pages;		/* pages that a folio of the first one has, at most */
	unsigned long long mapping;	/* address space of its first page, a mere name */
	unsigned long long index;	/* its place there, in pages */
	char file[32];			/* the file that its first page belongs to, as far as it fits; empty if it has none */
	char dir[16];			/* the directory which that is in, likewise */
};

/* The request that has the first slot of an attached device's queue. */
struct fb_slot {
	unsigned long long sector;	/* its first one */
	unsigned int device;
	unsigned int awaited;		/* somebody critical waits for a slot */
	unsigned int payers;		/* the rates of those who do, as in a tag */
	unsigned int unused;
};

/* Anything else that the daemon is told. */
struct fb_signal {
	unsigned int type;		/* FB_SIGNAL_* */
	unsigned int tid;
	unsigned int tgid;
	unsigned int other;		/* the task that is waited for, or the child; 0 if unknown */
	unsigned int wait;		/* FB_WAIT_* */
	unsigned int critical;		/* FB_CRITICAL_* of tid */
	unsigned long long value;	/* ns of a wait that is over; of one that begins, the critical task at the head of the chain, and in the upper half the rates as in a tag */
	unsigned long long mapping;	/* of the page that is waited for */
	unsigned long long index;
	char comm[16];
};

/* Beside what a task waits for: whoever waits in this function for a page's write-back has locked no page. */
#define FB_RANGE_UNLOCKED 256

/* Where a function of the kernel lies, and what a task waits for that sleeps in it. */
struct fb_range {
	unsigned long long from;
	unsigned long long to;
	unsigned int wait;
	unsigned int flags;		/* FB_RANGE_* */
};

/* All of them; the first one that ends nowhere is none, nor is any behind it. */
struct fb_ranges {
	struct fb_range range[FB_RANGES_MAX];
};

/* Disks whose writes are tagged, major << 20 | minor; the first 0 ends them. */
struct fb_disks {
	unsigned int disk[FB_DISKS_MAX];
};

/* A probe in a program, as its cookie tells: bits 0-7 FB_LWLOCK_*, 8-15 FB_ARGUMENT_*, 16-31 place of the register in pt_regs, 32-63 offset. */
#define FB_LWLOCK_WAIT 1	/* a task begins to wait for a lock */
#define FB_LWLOCK_WAITED 2
#define FB_LWLOCK_ACQUIRE 3	/* it holds one more lock of this name */
#define FB_LWLOCK_RELEASE 4

/* Where the probe's first argument, the lock's name, lies. */
#define FB_ARGUMENT_REGISTER 0
#define FB_ARGUMENT_MEMORY 1	/* at the register's address plus the offset */
#define FB_ARGUMENT_CONSTANT 2	/* the offset itself */

/* A task's place in the world, as the daemon's rules see it: FB_CRITICAL_NONE, _DIRECT, _REQUESTS or _NEVER, and: */
#define FB_ROLE_CRITICAL 15
#define FB_ROLE_SEEN 16		/* it has written to a volume, or the daemon has told of it */
#define FB_ROLE_HEARD 32	/* its hint is believed, although not everybody's is */
#define FB_ROLE_RATE 65280	/* which rate its rule has, from 1 on, or 0; that of the rule of whom it was forked from, if it is not yet SEEN */
#define FB_ROLE_RATE_SHIFT 8

/*
 * Those who wait for something may all be tasks of rules with rates: then what is written for them is charged to one of these. Such a set of
 * rates has bit N - 1 for rate N; it is 0 if one waits that has none.
 */

/* The roles of tasks with numbers that follow each other, by number; 0: nothing is known of it. The daemon stores single ones. */
#define FB_ROLES_TOGETHER 64
struct fb_roles {
	unsigned short role[FB_ROLES_TOGETHER];
};

/* Counters: what was dropped because a ring was full. */
#define FB_COUNT_TAGS_DROPPED 0
#define FB_COUNT_SIGNALS_DROPPED 1
/* And whom the programs have to do with at the moment: critical tasks that wait, themselves or at the end of a chain, for a journal, for a page's lock, or for a slot of the disk's queue. */
#define FB_COUNT_JOURNAL_WAITERS 2
#define FB_COUNT_PAGE_WAITERS 3
#define FB_COUNT_SLOT_WAITERS 4
#define FB_COUNT_BLOCKED 5	/* tasks of which is known that they wait */
#define FB_COUNT_FLUSH_WAITERS 6	/* critical tasks that wait so for a flush, or as above for a journal, which flushes */
#define FB_COUNT_HINTS_LIMITED 7	/* not 0: of a task that is not FB_ROLE_HEARD a hint is not believed */
#define FB_COUNTS 8

#endif
