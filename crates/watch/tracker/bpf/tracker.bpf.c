/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who issues the writes of attached volumes, and who waits for whom.
 *
 *   block_bio_queue        a write is queued: its tag, with the issuer and how it is critical, goes into the ring `tags`
 *   block_rq_issue         a request has the first slot of its queue, which may be the only one that somebody is given: the ring `slots`
 *                          says so (attached where a disk has a scheduler, which gives slots, and only
 *                          for a minute after somebody critical slept for one)
 *   contention_begin/end   a task waits for a kernel mutex or rwsem: its owner inherits until the wait is over, and who takes it over meanwhile
 *   folio_wait_writeback   a task is about to wait for a page that is being written: the daemon promotes that write
 *   sched_switch           a task falls asleep: what for is seen by its stack (journal, page, buffer) or its futex
 *   sched_process_*        tasks come and go
 *   sock_recv_length etc.  a task reads a request from an accepted socket, or answers on it
 *   lwlock probes          a PostgreSQL process waits for a lightweight lock, or holds one
 *
 * Nothing here decides about data: wrong or missing tags change speed only (P8).
 */
#include "kernel.h"
#include "tracker.h"

char program_license[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FB_TAGS_BYTES);
} tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FB_SLOTS_BYTES);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FB_SIGNALS_BYTES);
} signals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fb_disks);
} disks SEC(".maps");

/* What the daemon's rules say of each task. No hash: it is looked at for each write, and whenever somebody falls asleep. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FB_TIDS_MAX / FB_ROLES_TOGETHER);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct fb_roles);
} roles SEC(".maps");

/* How many critical tasks a task holds up, and one of them. */
struct holder {
	s64 count;
	u64 lock;	/* the one lock of the kernel's by which it holds up all of them, or 0 */
	u32 waiter;
	u32 wait;
	u32 kind;	/* FB_WAIT_* of the lock */
	u32 payers;	/* rates of those with one */
	s64 unrated;	/* how many of them have none */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_TASKS_MAX);
	__type(key, u32);
	__type(value, struct holder);
} holders SEC(".maps");

/* What a blocked task is blocked by, and whom it made inherit. */
struct block {
	u64 since;
	u64 mapping;
	u64 index;
	u64 transaction;	/* it has a handle of this one open, or 0 */
	u64 lock;	/* the kernel's lock that is waited for, or 0 */
	u32 wait;
	u32 owner;
	u32 direct;	/* the wait of a critical task: one that inherits waits as a part of such a wait */
	u32 derived;	/* the wait of one that inherits, although nothing was counted for it */
	u32 listed;	/* among those that wait for a lock of the kernel's */
	u32 links;
	u32 journal;	/* one of the links may need a commit of the journal */
	u32 flush;	/* one of the links may need a flush */
	u32 page;	/* one of the links waits for a page's lock */
	u32 slot;	/* one of the links waits for a slot of the disk's queue */
	u32 submits;	/* it sleeps with the lock of a page that it submits in its hands, as far as is known, and may inherit */
	u32 payers;	/* the rates of those for whom it is waited for */
	u32 chain[FB_CHAIN_MAX];
};

/* None gives way to another: what was counted for it would count for good. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FB_TASKS_MAX);
	__type(key, u32);
	__type(value, struct block);
} blocked SEC(".maps");

/* The page that a task is about to wait for. */
struct page_wait {
	u64 mapping;
	u64 index;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_TASKS_MAX);
	__type(key, u32);
	__type(value, struct page_wait);
} pages SEC(".maps");

/* A request that a task has read and not answered. */
struct request {
	u64 sock;
	u64 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_TASKS_MAX);
	__type(key, u32);
	__type(value, struct request);
} requests SEC(".maps");

/* Which task has read a request from a socket: another one may answer. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_SOCKETS_MAX);
	__type(key, u64);
	__type(value, u32);
} readers SEC(".maps");

/* TCP connections that somebody else has opened. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_SOCKETS_MAX);
	__type(key, u64);
	__type(value, u32);
} accepted SEC(".maps");

/* Who holds lightweight locks of a name; the name is the address of its text, which all processes of a server share. */
struct lock_holders {
	u32 tids[FB_HOLDERS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_LOCKS_MAX);
	__type(key, u64);
	__type(value, struct lock_holders);
} lock_holders SEC(".maps");

/* Tasks that wait in such a way that others have to look at them. */
enum {
	WITH_HANDLE,	/* with a handle of a journal open */
	WITH_PAGE,	/* with the lock of one that they submit; they sleep for a slot of the disk's queue, or until that page was written before */
	FOR_LOCK,	/* critical, or inheriting, for a lock of the kernel's; two of each lock */
	SLEEPER_KINDS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLEEPER_KINDS);
	__type(key, u32);
	__type(value, struct lock_holders);
} sleepers SEC(".maps");

/* How many of them a task holds, and since when it holds any. */
struct holding {
	u64 name;
	u64 tid;
};

struct hold {
	u64 count;
	u64 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_LOCKS_MAX);
	__type(key, struct holding);
	__type(value, struct hold);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fb_ranges);
} ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FB_COUNTS);
	__type(key, u32);
	__type(value, s64);
} counts SEC(".maps");

/* Of those that are counted so how many have which rate; none: 0. */
struct rated {
	s64 waiters[FB_RATES_MAX + 1];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FB_COUNTS);
	__type(key, u32);
	__type(value, struct rated);
} rated SEC(".maps");

struct stack {
	u64 frames[FB_FRAMES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stack);
} stacks SEC(".maps");

NOINLINE int count(u32 which, s64 by)
{
	s64 *value = bpf_map_lookup_elem(&counts, &which);
	if (value)
		__sync_fetch_and_add(value, by);
	return 0;
}

INLINE s64 counted(u32 which)
{
	s64 *value = bpf_map_lookup_elem(&counts, &which);
	return value ? *value : 0;
}

/* The rates of those who are counted so, as a set; 0 if one of them has none. */
NOINLINE u32 payers_of(u32 which)
{
	struct rated *by_rate = bpf_map_lookup_elem(&rated, &which);
	u32 payers = 0;
	if (!by_rate || by_rate->waiters[0] > 0)
		return 0;
	for (u32 i = 0; i < FB_RATES_MAX; i++) {
		if (by_rate->waiters[i + 1] > 0)
			payers |= 1u << i;
	}
	return payers;
}

/* So many more, or less, of those that are counted so wait for the sake of tasks with these rates. */
NOINLINE int count_for(u32 which, u32 payers, s64 by)
{
	struct rated *by_rate = bpf_map_lookup_elem(&rated, &which);
	count(which, by);
	if (!by_rate)
		return 0;
	if (!payers)
		__sync_fetch_and_add(&by_rate->waiters[0], by);
	for (u32 i = 0; i < FB_RATES_MAX && payers; i++) {
		if (payers & 1u << i)
			__sync_fetch_and_add(&by_rate->waiters[i + 1], by);
	}
	return 0;
}

/* The current task's name, 16 bytes. `bpf_get_current_comm` looks for its end first, which takes longer than the copy. */
INLINE void current_comm(char *comm)
{
	const u64 *name = (void *)bpf_get_current_task_btf()->comm;
	((u64 *)comm)[0] = name[0];
	((u64 *)comm)[1] = name[1];
}

/* Whether the current task, of this role, says of itself that it works for a request, and is believed. */
INLINE int hinted(u32 role)
{
	struct io_context *context = bpf_get_current_task_btf()->io_context;
	return context && (context->ioprio >> FB_HINT_SHIFT & FB_HINT_MASK) == FB_HINT_CRITICAL
	       && (role & FB_ROLE_HEARD || !counted(FB_COUNT_HINTS_LIMITED));
}

/* Whether a task has read a request and not answered it. */
INLINE int in_request(u32 tid)
{
	struct request *request = bpf_map_lookup_elem(&requests, &tid);
	return request && bpf_ktime_get_ns() - request->since < FB_REQUEST_NS_MAX;
}

/* Where a task's role is kept. */
INLINE u16 *role_at(u32 tid)
{
	u32 at = tid / FB_ROLES_TOGETHER;
	struct fb_roles *together = bpf_map_lookup_elem(&roles, &at);
	if (!together)
		return 0;
	return &together->role[tid % FB_ROLES_TOGETHER];
}

INLINE u32 role_of(u32 tid)
{
	u16 *role = role_at(tid);
	return role ? *role : 0;
}

/* Whether a task of this role has to do with any volume, as far as is known. */
INLINE int is_of_concern(u32 role)
{
	return (role & ~FB_ROLE_HEARD) != 0;
}

/* The rate of the rule of a task with this role, as a set. */
INLINE u32 payer(u32 role)
{
	u32 rate = role >> FB_ROLE_RATE_SHIFT;
	return rate ? 1u << ((rate - 1) & (FB_RATES_MAX - 1)) : 0;
}

INLINE void set_role(u32 tid, u16 role)
{
	u16 *place = role_at(tid);
	if (place)
		*place = role;
}

/* Whether the current task works for a request, FB_CRITICAL_DIRECT or _HINTED, or 0; `role` is its own. */
INLINE u32 direct(u32 tid, u32 role)
{
	u32 rule = role & FB_ROLE_CRITICAL;
	if (rule == FB_CRITICAL_NEVER)
		return 0;
	if (rule == FB_CRITICAL_DIRECT || (rule == FB_CRITICAL_REQUESTS && in_request(tid)))
		return FB_CRITICAL_DIRECT;
	return hinted(role) ? FB_CRITICAL_HINTED : 0;
}

/* Whether the rules say that a task is not critical, whoever waits for it. */
INLINE int is_never(u32 role)
{
	return (role & FB_ROLE_CRITICAL) == FB_CRITICAL_NEVER;
}

INLINE struct lock_holders *sleeping(u32 how)
{
	return bpf_map_lookup_elem(&sleepers, &how);
}

/* How one is bound that was made by a task of this role, until the daemon has looked at it: or else one could escape what rules say by forking. */
INLINE u32 bound_by(u32 role)
{
	return is_never(role) || role & FB_ROLE_RATE ? FB_CRITICAL_NEVER | (role & FB_ROLE_RATE) : 0;
}

/* What a lock of the kernel's says of who holds it; 0 if it is not known. */
INLINE u64 lock_word(u64 lock, u32 wait)
{
	u64 owner = 0;
	/* A kernel for real-time work has other locks under these names. */
	if (wait == FB_WAIT_MUTEX && EXISTS(((struct mutex *)lock)->owner))
		READ(owner, ((struct mutex *)lock)->owner);
	else if (wait == FB_WAIT_RWSEM && EXISTS(((struct rw_semaphore *)lock)->owner))
		READ(owner, ((struct rw_semaphore *)lock)->owner);
	return owner;
}

/* Who holds it; of several readers the last one, perhaps. */
INLINE struct task_struct *lock_owner(u64 lock, u32 wait)
{
	return (void *)(lock_word(lock, wait) & ~7ull);
}

/* Readers of a lock are not all known (the kernel's RWSEM_READER_OWNED). */
enum { READERS = 1 };

/* Whether a lock of the kernel's that `tid` had is nobody's by now, or another task's. */
NOINLINE int is_given_on(u64 lock, u32 wait, u32 tid)
{
	u64 word = lock_word(lock, wait);
	struct task_struct *owner = (void *)(word & ~7ull);
	u32 pid = 0;
	if (wait == FB_WAIT_RWSEM && word & READERS)
		return 0;
	return !owner || READ(pid, owner->pid) || pid != tid;
}

/* What a task has inherited, or 0: of what it inherits by a lock that it has given on nothing is left. */
INLINE struct holder *holder_of(u32 tid)
{
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	if (!holder || holder->count <= 0 || (holder->lock && is_given_on(holder->lock, holder->kind, tid)))
		return 0;
	return holder;
}

/* The rates of those for whose sake a task inherits, as a set; 0 if one of them has none. */
INLINE u32 payers_for(const struct holder *holder)
{
	return holder->unrated > 0 ? 0 : holder->payers;
}

/* What one of those in a list is blocked by, and who it is; 0 if that is nobody, or the current task, `tid`. */
INLINE struct block *sleeper_at(const struct lock_holders *list, u32 i, u32 tid, u32 *who)
{
	*who = list->tids[i];
	return *who && *who != tid ? bpf_map_lookup_elem(&blocked, who) : 0;
}

/* For whose sake a task inherits: a task that waits for it, and the rates of those who do. */
#define SAKE(waiter, payers) ((u64)(payers) << 32 | (waiter))
#define PAYERS(sake) ((u32)((sake) >> 32))

/*
 * What is inherited by one who has taken a lock over: the task that waits for it (its number has 22 bits), how, whether as much as that one has
 * itself, and the rates of those who wait.
 */
#define HERITAGE(waiter, wait, derived, payers) (SAKE(waiter, payers) | (wait) << 24 | !!(derived) << 23)
#define HERITAGE_WAITER(heritage) ((u32)(heritage) & (FB_TIDS_MAX - 1))
#define HERITAGE_WAIT(heritage) ((u32)(heritage) >> 24)
#define HERITAGE_DERIVED(heritage) ((u32)(heritage) >> 23 & 1)

/*
 * What the current task, `tid`, inherits by a lock that somebody waits for and that it has taken meanwhile; or 0. Whoever was waited for has
 * given it on, and nobody is told: so the lock is looked at when the new owner writes or falls asleep.
 */
NOINLINE u64 heir_of(u32 tid)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct lock_holders *list = sleeping(FOR_LOCK);
	if (!list)
		return 0;
	for (u32 i = 0; i < FB_HOLDERS_MAX; i++) {
		u32 waiter;
		struct block *block = sleeper_at(list, i, tid, &waiter);
		if (!block || !block->listed || lock_owner(block->lock, block->wait) != self)
			continue;
		if (!block->direct && !block->derived && !holder_of(waiter))
			continue;
		return HERITAGE(waiter, block->wait, block->derived, block->payers);
	}
	return 0;
}

/* How the current task is critical now. By itself, so that what it finds out on the way multiplies no states of whoever asks. */
NOINLINE int criticality(u32 tid)
{
	u32 role = role_of(tid);
	if (direct(tid, role))
		return FB_CRITICAL_DIRECT;
	if (is_never(role))
		return FB_CRITICAL_NONE;
	return holder_of(tid) ? FB_CRITICAL_INHERITED : FB_CRITICAL_NONE;
}

NOINLINE int tell(struct fb_signal *signal)
{
	if (signal && bpf_ringbuf_output(&signals, signal, sizeof(*signal), 0))
		count(FB_COUNT_SIGNALS_DROPPED, 1);
	return 0;
}

INLINE int is_journal(const char *comm)
{
	return comm[0] == 'j' && comm[1] == 'b' && comm[2] == 'd' && comm[3] == '2' && comm[4] == '/';
}

/* Whether the commit of a transaction waits for the handles that are open; less than 0 if it is no transaction. */
INLINE int waits_for_handles(u64 transaction)
{
	u32 state = 0;
	if (!transaction || bpf_probe_read_kernel(&state, sizeof(state), (void *)(transaction + TRANSACTION_STATE)))
		return -1;
	return state == TRANSACTION_LOCKED;
}

/* The transaction of which the current task has a handle open, or 0. Other file systems keep something else there. */
INLINE u64 transaction(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	void *handle = 0;
	u64 found = 0;
	if (READ(handle, task->journal_info) || !handle || bpf_probe_read_kernel(&found, sizeof(found), handle))
		return 0;
	return waits_for_handles(found) < 0 ? 0 : found;
}

/* Whether somebody critical waits for the journal, and it for the current task. */
INLINE int is_awaited_by_journal(const char *comm)
{
	return counted(FB_COUNT_JOURNAL_WAITERS) > 0 && (is_journal(comm) || waits_for_handles(transaction()) > 0);
}

/*
 * Whether somebody critical waits for the journal or a flush, and a write with these flags holds up flushes, and so the end of each commit: the
 * block layer begins none while one is under way that a flush belongs to. Whoever makes room in the journal writes its superblock so. Which
 * disk is waited for is not told apart.
 */
INLINE int holds_up_flushes(u32 flags)
{
	return counted(FB_COUNT_FLUSH_WAITERS) > 0 && flags & FB_FLUSH_FLAGS;
}

INLINE void enlist(struct lock_holders *holding, u32 tid)
{
	for (u32 i = 0; i < FB_HOLDERS_MAX && holding; i++) {
		if (!__sync_val_compare_and_swap(&holding->tids[i], 0, tid))
			break;
	}
}

INLINE void strike(struct lock_holders *holding, u32 tid)
{
	for (u32 i = 0; i < FB_HOLDERS_MAX && holding; i++) {
		__sync_val_compare_and_swap(&holding->tids[i], tid, 0);
	}
}

/* --- writes ------------------------------------------------------------------------------------------------------------ */

/*
 * The first two flags of a bio. Of the first alone: its pages are its issuer's own memory, past the page cache, and are pinned. Before Linux
 * 6.5 it meant that they are not the bio's to give back, as those of another bio's pages are; but then the second is set, too.
 */
enum { PAST_CACHE = 1, OTHERS_PAGES = 2 };

/* Where the first page of a bio belongs. A name to find the write by that a page waits for; 0 if it has none. */
INLINE void name_page(struct bio *bio, struct fb_tag *tag)
{
	struct bio_vec *vec = bio->bi_io_vec;
	struct page *page = 0;
	unsigned long head = 0;
	/* Linux 5.15 has no folios. Of a pointer that the verifier knows for one no bit could be looked at. */
	if (!EXISTS(((struct folio *)0)->mapping) || !vec || READ(page, vec->bv_page) || !page)
		return;
	READ(head, page->compound_head);
	struct folio *folio = (void *)page;
	if (head & 1) {
		folio = (void *)(head - 1);
		/* A page's description has 64 bytes. */
		tag->pages = ((u64)page - (u64)folio) / 64;
	}
	/* Before Linux 6.15 some file systems give the folio's first page, and the place within the folio. */
	tag->pages += vec->bv_offset >> 12;
	READ(tag->mapping, folio->mapping);
	READ(tag->index, folio->index);
	tag->index += tag->pages;
}

/* What the file is called that a bio's first page belongs to, and its directory: of several names one. Only reports tell of it. */
INLINE void name_file(struct fb_tag *tag)
{
	struct address_space *mapping = (void *)tag->mapping;
	struct inode *inode = 0;
	u64 alias = 0;
	const unsigned char *name = 0;
	/* What belongs to no file but to a task's own memory has a mark in its address. */
	if (!mapping || tag->mapping & 3 || !EXISTS(((struct dentry *)0)->d_u) || READ(inode, mapping->host) || !inode)
		return;
	if (READ(alias, inode->i_dentry.first) || !alias)
		return;
	struct dentry *dentry = (void *)(alias - OFFSET(((struct dentry *)0)->d_u)), *parent = 0;
	if (READ(name, dentry->d_name.name) || bpf_probe_read_kernel_str(tag->file, sizeof(tag->file), name) < 0)
		return;
	if (!READ(parent, dentry->d_parent) && !READ(name, parent->d_name.name))
		bpf_probe_read_kernel_str(tag->dir, sizeof(tag->dir), name);
}

/* A disk's number, as `disks` and the daemon know it. */
INLINE u32 number_of(const struct gendisk *disk)
{
	return (u32)disk->major << 20 | (u32)disk->first_minor;
}

/* Whether writes to this disk are tagged. */
INLINE int is_watched(u32 device)
{
	u32 zero = 0;
	struct fb_disks *watched = bpf_map_lookup_elem(&disks, &zero);
	for (u32 i = 0; i < FB_DISKS_MAX && watched; i++) {
		if (!watched->disk[i])
			break;
		if (watched->disk[i] == device)
			return 1;
	}
	return 0;
}

SEC("tp_btf/block_bio_queue")
int on_bio(u64 *ctx)
{
	struct bio *bio = (void *)ctx[0];
	u32 op = bio->bi_opf & 0xff;
	/* Writes and zeroes; discards and flushes carry nothing that anybody chooses a way for. */
	if (op != 1 && op != 9)
		return 0;
	u32 device = number_of(bio->bi_bdev->bd_disk);
	if (!is_watched(device) || !bio->bi_iter.bi_size)
		return 0;
	struct fb_tag tag = {};
	u64 ids = bpf_get_current_pid_tgid();
	tag.tid = ids;
	tag.device = device;
	tag.sector = bio->bi_iter.bi_sector;
	tag.bytes = bio->bi_iter.bi_size;
	tag.flags = bio->bi_opf;
	tag.ioprio = bio->bi_ioprio;
	current_comm(tag.comm);
	u32 known = role_of(tag.tid), role = known;
	/* Of the kernel's threads for io_uring nobody is told when they are made. */
	if (!(known & FB_ROLE_SEEN))
		role |= bound_by(role_of(ids >> 32));
	struct holder *holder;
	u64 heritage;
	if ((tag.critical = direct(tag.tid, role))) {
		/* Its own rate is what counts, if it has one. */
	} else if (is_never(role)) {
		tag.critical = FB_CRITICAL_NEVER;
	} else if ((holder = holder_of(tag.tid))) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.waiter = holder->waiter;
		tag.via = holder->wait;
		tag.payers = payers_for(holder);
	} else if ((heritage = heir_of(tag.tid))) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.waiter = HERITAGE_WAITER(heritage);
		tag.via = HERITAGE_WAIT(heritage);
		tag.payers = PAYERS(heritage);
	} else if (is_awaited_by_journal(tag.comm)) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.via = FB_WAIT_JOURNAL;
		tag.payers = payers_of(FB_COUNT_JOURNAL_WAITERS);
	} else if (holds_up_flushes(tag.flags)) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.via = FB_WAIT_FLUSH;
		tag.payers = payers_of(FB_COUNT_FLUSH_WAITERS);
	}
	if (!(known & FB_ROLE_SEEN)) {
		/* What the daemon says of it at this very moment may be lost, and is said again when it hears this. */
		set_role(tag.tid, known | FB_ROLE_SEEN);
		struct fb_signal signal = { .type = FB_SIGNAL_SEEN, .tid = tag.tid, .tgid = ids >> 32 };
		__builtin_memcpy(signal.comm, tag.comm, sizeof(tag.comm));
		tell(&signal);
	}
	if (op == 1 && (bio->bi_flags & (PAST_CACHE | OTHERS_PAGES)) != PAST_CACHE) {
		name_page(bio, &tag);
		name_file(&tag);
	}
	u64 size = tag.file[0] ? sizeof(tag)
		 : tag.mapping ? __builtin_offsetof(struct fb_tag, file) : __builtin_offsetof(struct fb_tag, mapping);
	/* The ring is looked into when a request is taken in; nobody is woken. */
	if (bpf_ringbuf_output(&tags, &tag, size, BPF_RB_NO_WAKEUP))
		count(FB_COUNT_TAGS_DROPPED, 1);
	return 0;
}

/*
 * `bfq` gives a process that has more than its share of the slots the first one alone, however many are free (before Linux 6.18 the
 * first of each 32 or so). So whoever waits for a slot may wait for the one request that has the first, and, until it is his turn, for
 * the next that gets it.
 */
SEC("tp_btf/block_rq_issue")
int on_issue(u64 *ctx)
{
	struct request___disk *issued = (void *)ctx[0];
	u32 op = issued->cmd_flags & 0xff;
	/* Without a scheduler none has a slot of it. Nothing but writes can go another way. */
	if (issued->internal_tag || (op != 1 && op != 9))
		return 0;
	u32 device = number_of(issued->q->disk);
	if (!is_watched(device))
		return 0;
	struct fb_slot slot = { .sector = issued->__sector, .device = device, .awaited = counted(FB_COUNT_SLOT_WAITERS) > 0 };
	if (slot.awaited)
		slot.payers = payers_of(FB_COUNT_SLOT_WAITERS);
	if (bpf_ringbuf_output(&slots, &slot, sizeof(slot), BPF_RB_NO_WAKEUP))
		count(FB_COUNT_TAGS_DROPPED, 1);
	return 0;
}

/* --- waits ------------------------------------------------------------------------------------------------------------- */

/*
 * A task holds up another, whose `sake` it is for and which waits as `wait` says; by a lock of the kernel's of this `kind`, unless that is 0. Whether
 * it was counted, and is to be taken back.
 */
NOINLINE int inherit(u32 tid, u64 sake, u32 wait, u64 lock, u32 kind)
{
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	u32 payers = PAYERS(sake);
	if (!holder) {
		struct holder first = {
			.count = 1, .lock = lock, .waiter = sake, .wait = wait, .kind = kind, .payers = payers, .unrated = !payers,
		};
		if (!bpf_map_update_elem(&holders, &tid, &first, BPF_NOEXIST))
			return 1;
		/* Another processor was faster. */
		holder = bpf_map_lookup_elem(&holders, &tid);
		if (!holder)
			return 0;
	}
	s64 before = __sync_fetch_and_add(&holder->count, 1);
	if (!payers)
		__sync_fetch_and_add(&holder->unrated, 1);
	if (before <= 0) {
		holder->kind = kind;
		holder->lock = lock;
		holder->payers = payers;
	} else {
		/* Whoever has ceased to wait meanwhile stays among them: one of those who waited pays. */
		holder->payers |= payers;
	}
	/* It holds up some by this lock and some by another, or another processor has just come by: that it gives on one lock is not all. */
	if (before <= 0 ? holder->count > 1 : holder->lock != lock)
		holder->lock = 0;
	holder->waiter = sake;
	holder->wait = wait;
	return 1;
}

/* It stays there until the task ends, or gives way to others: what another processor has just found must not become somebody else's. */
NOINLINE int disinherit(u32 tid, u32 payers)
{
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	if (!holder)
		return 0;
	if (!payers && __sync_fetch_and_add(&holder->unrated, -1) <= 0)
		__sync_fetch_and_add(&holder->unrated, 1);
	if (__sync_fetch_and_add(&holder->count, -1) <= 0)
		__sync_fetch_and_add(&holder->count, 1);
	return 0;
}

/*
 * Whether what is waited for may need a commit of the journal. A page does that was written where the journal knows of nothing
 * written yet: its write-back ends when a worker of the file system has put that on record, for which it waits for the commit
 * that runs.
 */
INLINE int needs_journal(u32 wait)
{
	return wait == FB_WAIT_JOURNAL || wait == FB_WAIT_WRITEBACK;
}

/* Whether the last ground that a task inherits for is a page's lock, which it is only supposed to have. */
INLINE int is_supposed(u32 tid, u32 critical)
{
	struct holder *holder = critical == FB_CRITICAL_INHERITED ? holder_of(tid) : 0;
	return holder && holder->wait == FB_WAIT_BUFFER;
}

/*
 * One more of the links behind a wait: what the whole of them may need. If it, or who waits, is only supposed to hold somebody up,
 * that is no ground for supposing more; or else tasks could keep each other critical. A slot is waited for all the same, whoever has it.
 */
INLINE void add_needs(struct block *block, u32 wait, u32 supposed)
{
	block->slot |= wait == FB_WAIT_SLOT;
	if (supposed)
		return;
	block->journal |= needs_journal(wait);
	block->flush |= wait == FB_WAIT_FLUSH || needs_journal(wait);
	block->page |= wait == FB_WAIT_BUFFER;
}

INLINE void count_needs(const struct block *block, s64 by)
{
	if (block->journal)
		count_for(FB_COUNT_JOURNAL_WAITERS, block->payers, by);
	if (block->flush)
		count_for(FB_COUNT_FLUSH_WAITERS, block->payers, by);
	if (block->page)
		count_for(FB_COUNT_PAGE_WAITERS, block->payers, by);
	if (block->slot)
		count_for(FB_COUNT_SLOT_WAITERS, block->payers, by);
}

/* A task begins to wait as its `block` says, or is found to, for the sake of the current one and those with these rates. */
INLINE void tell_wait(u32 tid, u32 tgid, u32 critical, const struct block *block, u32 payers)
{
	struct fb_signal signal = {
		.type = FB_SIGNAL_WAIT, .tid = tid, .tgid = tgid, .other = block->owner, .wait = block->wait,
		.critical = critical, .mapping = block->mapping, .index = block->index,
		.value = SAKE((u32)bpf_get_current_pid_tgid(), payers),
	};
	current_comm(signal.comm);
	tell(&signal);
}

/* What was counted for a wait counts no more. */
INLINE void take_back(const struct block *block)
{
	for (u32 i = 0; i < FB_CHAIN_MAX; i++) {
		if (i >= block->links)
			break;
		disinherit(block->chain[i], block->payers);
	}
	count_needs(block, -1);
}

/* Whether two that wait for this lock are listed: whoever takes it over is found by them, and others need the places. */
NOINLINE int is_listed(u64 lock)
{
	struct lock_holders *list = sleeping(FOR_LOCK);
	u32 found = 0;
	for (u32 i = 0; i < FB_HOLDERS_MAX && list; i++) {
		u32 waiter;
		struct block *block = sleeper_at(list, i, 0, &waiter);
		found += block && block->listed && block->lock == lock;
	}
	return found > 1;
}

/* What was counted for the current task's wait, which is put on record. */
INLINE void put(u32 tid, const struct block *block)
{
	count_needs(block, 1);
	/* What has no place there would never end. */
	if (bpf_map_update_elem(&blocked, &tid, block, BPF_NOEXIST)) {
		take_back(block);
		return;
	}
	count(FB_COUNT_BLOCKED, 1);
	if (block->transaction)
		enlist(sleeping(WITH_HANDLE), tid);
	if (block->submits)
		enlist(sleeping(WITH_PAGE), tid);
	if (block->listed)
		enlist(sleeping(FOR_LOCK), tid);
}

/* A task's wait is over. */
NOINLINE int end(u32 tid, u32 tgid)
{
	struct block *found = bpf_map_lookup_elem(&blocked, &tid);
	if (!found)
		return 0;
	/* Its place may be another task's as soon as it is taken out, and whoever takes it out takes back what was counted: once. */
	struct block own = *found, *block = &own;
	if (bpf_map_delete_elem(&blocked, &tid))
		return 0;
	count(FB_COUNT_BLOCKED, -1);
	take_back(block);
	if (block->transaction)
		strike(sleeping(WITH_HANDLE), tid);
	if (block->submits)
		strike(sleeping(WITH_PAGE), tid);
	if (block->listed)
		strike(sleeping(FOR_LOCK), tid);
	if (block->direct) {
		struct fb_signal signal = {
			.type = FB_SIGNAL_WAITED, .tid = tid, .tgid = tgid, .other = block->owner, .wait = block->wait,
			.value = bpf_ktime_get_ns() - block->since, .critical = FB_CRITICAL_DIRECT,
		};
		current_comm(signal.comm);
		tell(&signal);
	}
	return 0;
}

/* The place of a link. The bound is one that the compiler can't leave out: the verifier of Linux 6.1 forgets an earlier one over a call. */
INLINE u32 place_of(u32 link)
{
	asm volatile("" : "+r"(link));
	return link & (FB_CHAIN_MAX - 1);
}

/* One that holds up the current task, `tid`, as far as is known or supposed, inherits from it, and whoever that one waits for. */
INLINE void lend(struct block *block, u32 holder, const struct block *further, u32 tid, u32 wait, u32 supposed)
{
	u32 links = block->links;
	block->chain[place_of(links++)] = holder;
	if (further) {
		tell_wait(holder, 0, FB_CRITICAL_INHERITED, further, block->payers);
		add_needs(block, further->wait, supposed);
		u32 next = further->owner;
		if (next && next != tid && links < FB_CHAIN_MAX && inherit(next, SAKE(tid, block->payers), wait, further->lock, further->wait))
			block->chain[place_of(links++)] = next;
	}
	block->links = links;
}

/* Those inherit who sleep with such a thing in their hands, and hold up the current task, `tid`, by it. */
INLINE void lend_to_sleepers_with(struct block *block, u32 tid, u32 with, u32 wait)
{
	struct lock_holders *list = sleeping(with);
	for (u32 i = 0; i < FB_HOLDERS_MAX && list; i++) {
		u32 sleeper;
		struct block *further = sleeper_at(list, i, tid, &sleeper);
		if (!further || (with == WITH_HANDLE && waits_for_handles(further->transaction) <= 0))
			continue;
		if (block->links < FB_CHAIN_MAX && inherit(sleeper, SAKE(tid, block->payers), wait, 0, 0))
			lend(block, sleeper, further, tid, wait, with == WITH_PAGE);
	}
}

/*
 * A commit that is waited for waits for those who sleep with a handle open, and whoever waits for the lock of a page may wait for
 * one of those who sleep while they submit pages: the kernel does not say who has locked it, and it is supposed of all.
 */
NOINLINE int lend_to_sleepers(struct block *block, u32 tid)
{
	if (!block)
		return 0;
	if (block->journal)
		lend_to_sleepers_with(block, tid, WITH_HANDLE, FB_WAIT_JOURNAL);
	if (block->page)
		lend_to_sleepers_with(block, tid, WITH_PAGE, FB_WAIT_BUFFER);
	return 0;
}

/* Why a task inherits for what it begins to wait for, although nothing was counted for it. */
enum {
	BY_HERITAGE = 1,	/* somebody waits for the journal, or for a lock that it has taken over */
	COUNTED_ALREADY = 2,	/* the journal, or a lock of one who inherits so himself: what it needs counts for him */
	SUPPOSED = 4,		/* it may have locked the page whose lock is waited for */
};

/* Whether the current task falls asleep, as `how` says, with the lock of a page that it submits in its hands, and may inherit by it. */
NOINLINE int submits(u32 tid, u32 how)
{
	return (how == FB_WAIT_SLOT || how == FB_WAIT_WRITEBACK) && !is_never(role_of(tid));
}

/*
 * These grounds of the current task, which is not critical and begins to wait as `how` says, and the rates of those for whose sake it inherits by
 * them. By itself, as `criticality` is.
 */
NOINLINE u64 grounds_of(u32 tid, u32 how)
{
	if (is_never(role_of(tid)))
		return 0;
	/* Whoever waits for the journal waits for what its thread waits for, and those with a handle that it waits for. */
	char comm[16] __attribute__((aligned(8))) = {};
	current_comm(comm);
	if (is_awaited_by_journal(comm))
		return SAKE(BY_HERITAGE | COUNTED_ALREADY, payers_of(FB_COUNT_JOURNAL_WAITERS));
	/* Whoever has taken over what somebody waits for inherits as that one does. */
	u64 heritage = heir_of(tid);
	if (heritage)
		return SAKE(HERITAGE_DERIVED(heritage) ? BY_HERITAGE | COUNTED_ALREADY : BY_HERITAGE, PAYERS(heritage));
	/* Whoever waits for a page's lock may wait for one who falls asleep while it submits pages. */
	return submits(tid, how) && counted(FB_COUNT_PAGE_WAITERS) > 0 ? SAKE(SUPPOSED, payers_of(FB_COUNT_PAGE_WAITERS)) : 0;
}

/* The rates of those for whose sake a wait of the current task is that is critical so: its own, if it is critical itself. */
NOINLINE u32 payers_by(u32 tid, u32 critical)
{
	struct holder *holder;
	if (critical == FB_CRITICAL_DIRECT)
		return payer(role_of(tid));
	return critical == FB_CRITICAL_INHERITED && (holder = holder_of(tid)) ? payers_for(holder) : 0;
}

/*
 * The current task begins to wait, as `how` says: FB_WAIT_* and FB_RANGE_*. If it is critical, whoever it waits for inherits, and whoever that one
 * waits for, to the end of the chain. What it waits for may be a lock of the kernel's.
 */
NOINLINE int begin(u32 tid, u32 tgid, u32 how, u32 owner, u64 lock)
{
	struct block own = {}, *block = &own;
	u32 wait = how & ~FB_RANGE_UNLOCKED;
	block->since = bpf_ktime_get_ns();
	block->wait = wait;
	block->owner = owner;
	block->lock = lock;
	if (wait == FB_WAIT_WRITEBACK) {
		struct page_wait *page = bpf_map_lookup_elem(&pages, &tid);
		if (page) {
			block->mapping = page->mapping;
			block->index = page->index;
		}
	}
	/* Of a task that has nothing to do with any volume it does not matter. */
	block->transaction = is_of_concern(role_of(tid)) ? transaction() : 0;
	u32 critical = criticality(tid);
	u64 found = critical ? 0 : grounds_of(tid, how);
	u32 grounds = found;
	block->payers = critical ? payers_by(tid, critical) : PAYERS(found);
	if (grounds)
		critical = FB_CRITICAL_INHERITED;
	u32 supposed = grounds & SUPPOSED || is_supposed(tid, critical);
	block->derived = grounds & BY_HERITAGE;
	block->submits = critical != FB_CRITICAL_DIRECT && submits(tid, how);
	if (critical) {
		block->direct = critical == FB_CRITICAL_DIRECT;
		block->listed = lock && !is_listed(lock);
		add_needs(block, wait, supposed);
		tell_wait(tid, tgid, critical, block, block->payers);
		u32 next = owner, kind = wait;
		for (u32 i = 0; i < FB_CHAIN_MAX; i++) {
			if (!next || next == tid)
				break;
			if (!inherit(next, SAKE(tid, block->payers), wait, lock, kind))
				break;
			block->chain[i] = next;
			block->links = i + 1;
			struct block *further = bpf_map_lookup_elem(&blocked, &next);
			if (!further)
				break;
			tell_wait(next, 0, FB_CRITICAL_INHERITED, further, block->payers);
			add_needs(block, further->wait, supposed);
			next = further->owner;
			lock = further->lock;
			kind = further->wait;
		}
		if (grounds & COUNTED_ALREADY)
			block->page = 0;
		lend_to_sleepers(block, tid);
		/* It counts already for whom it was derived from; or else two journals could keep each other critical. */
		if (grounds & COUNTED_ALREADY)
			block->journal = block->flush = 0;
	}
	put(tid, block);
	return 0;
}

SEC("tp_btf/contention_begin")
int on_contention_begin(u64 *ctx)
{
	u64 lock = ctx[0];
	u32 flags = ctx[1];
	u64 ids = bpf_get_current_pid_tgid();
	u32 wait;
	if (flags == 32)
		wait = FB_WAIT_MUTEX;
	else if (flags == 2 || flags == 4)
		wait = FB_WAIT_RWSEM;
	else
		return 0;
	struct task_struct *task = lock_owner(lock, wait);
	s32 pid = 0;
	if (task)
		READ(pid, task->pid);
	u32 tid = ids;
	u64 since = 0;
	struct block *block = bpf_map_lookup_elem(&blocked, &tid);
	if (block && block->lock == lock) {
		/* Woken, and too late: the wait goes on, behind somebody else perhaps. */
		since = block->since;
		block->direct = 0;
	}
	/* A wait within a wait, or one whose end was not seen: what was counted for it is taken back. */
	end(tid, ids >> 32);
	begin(tid, ids >> 32, wait, pid, lock);
	if (since && (block = bpf_map_lookup_elem(&blocked, &tid)))
		block->since = since;
	return 0;
}

SEC("tp_btf/contention_end")
int on_contention_end(u64 *ctx)
{
	u64 ids = bpf_get_current_pid_tgid();
	u32 tid = ids;
	/* Most are for spinlocks, which nobody is told of. */
	struct block *block = counted(FB_COUNT_BLOCKED) > 0 ? bpf_map_lookup_elem(&blocked, &tid) : 0;
	/* Within the wait there are short ones, for the spinlock of that very lock. */
	if (block && block->lock == ctx[0])
		end(tid, ids >> 32);
	return 0;
}

SEC("tp_btf/folio_wait_writeback")
int on_folio_wait(u64 *ctx)
{
	struct folio *folio = (void *)ctx[0];
	u32 tid = bpf_get_current_pid_tgid();
	if (!is_of_concern(role_of(tid)) && !criticality(tid))
		return 0;
	struct page_wait wait = {};
	wait.mapping = (u64)folio->mapping;
	wait.index = folio->index;
	bpf_map_update_elem(&pages, &tid, &wait, BPF_ANY);
	return 0;
}

/* What a task waits for that sleeps at this address of the kernel, with FB_RANGE_*. */
NOINLINE int wait_at(u64 at)
{
	u32 zero = 0;
	struct fb_ranges *known = bpf_map_lookup_elem(&ranges, &zero);
	for (u32 r = 0; r < FB_RANGES_MAX && known; r++) {
		struct fb_range *range = &known->range[r];
		if (!range->to)
			break;
		if (at >= range->from && at < range->to)
			return range->wait | range->flags;
	}
	return FB_WAIT_NONE;
}

/* What the current task waits for, by its stack; the most telling frame counts, and the FB_RANGE_* of all. */
INLINE u32 wait_by_stack(void *ctx)
{
	u32 zero = 0;
	struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
	if (!stack)
		return FB_WAIT_NONE;
	long bytes = bpf_get_stack(ctx, stack->frames, sizeof(stack->frames), 0);
	u32 found = FB_WAIT_NONE, flags = 0;
	for (u32 f = 0; f < FB_FRAMES_MAX; f++) {
		if ((long)(f * 8) >= bytes)
			break;
		u32 how = wait_at(stack->frames[f]), wait = how & ~FB_RANGE_UNLOCKED;
		flags |= how & FB_RANGE_UNLOCKED;
		if (wait && (!found || wait < found))
			found = wait;
	}
	return found | flags;
}

/* What a task gave to the call of the kernel that it is in. */
INLINE struct pt_regs *registers(void)
{
	return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

/* The first words of a pthread mutex, as the GNU library has them. */
struct pthread_mutex {
	u32 lock;	/* 2: locked, and somebody waits */
	u32 count;
	u32 owner;
	u32 users;
	u32 kind;
};

/* Bits that the kind of one may have whose owner stands there: its type, shared by processes, what is said of elision. */
#define PTHREAD_KINDS (3 | 128 | 256 | 512)
/* More do not use it at a time, and what stands there is something else. */
#define PTHREAD_USERS_MAX 65536

/*
 * The owner of the pthread mutex that the current task waits for, which is in a call for a futex; or 0. Others wait so for locks of their own, behind
 * which anything may stand.
 */
INLINE u32 futex_owner(void)
{
	struct pthread_mutex mutex = {};
	if (bpf_probe_read_user(&mutex, sizeof(mutex), (void *)REGS_FIRST(registers())) || mutex.lock != 2)
		return 0;
	if (mutex.kind & ~PTHREAD_KINDS || !mutex.users || mutex.users > PTHREAD_USERS_MAX)
		return 0;
	return mutex.owner < FB_TIDS_MAX ? mutex.owner : 0;
}

/* Of a task's state: it can be interrupted; it cannot; it has nothing to do, and does not count as load. */
enum { SLEEPS = 1, SLEEPS_FOR_GOOD = 2, IDLES = 0x400 };

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1];
	struct task_struct *next = (void *)ctx[2];
	u32 state = ctx[3];
	u32 woken = next->pid;
	struct block *was = counted(FB_COUNT_BLOCKED) > 0 ? bpf_map_lookup_elem(&blocked, &woken) : 0;
	if (was && was->wait > FB_WAIT_RWSEM && was->wait != FB_WAIT_LWLOCK) {
		/* Its comm is not the current one; the daemon knows the task by its number. */
		end(woken, next->tgid);
	}
	u32 tid = prev->pid;
	u32 futex = state & SLEEPS && REGS_SYSCALL(registers()) == SYSCALL_FUTEX;
	u32 disk = (state & (SLEEPS_FOR_GOOD | IDLES)) == SLEEPS_FOR_GOOD;
	/* Whoever is preempted does not sleep, whatever it was about to do. This comes first: most that fall asleep are of no concern. */
	if (ctx[0] || !tid || !(futex || disk))
		return 0;
	u32 role = role_of(tid);
	if (!is_of_concern(role) && !holder_of(tid) && !hinted(role) && !(disk && heir_of(tid)))
		return 0;
	/* The wait for a lock has been noted, and is over when the lock is taken. */
	if (bpf_map_lookup_elem(&blocked, &tid))
		return 0;
	if (disk) {
		u32 how = wait_by_stack(ctx);
		if (how)
			begin(tid, prev->tgid, how, 0, 0);
		return 0;
	}
	u32 owner = futex_owner();
	if (owner)
		begin(tid, prev->tgid, FB_WAIT_FUTEX, owner, 0);
	else if ((role & FB_ROLE_CRITICAL) == FB_CRITICAL_REQUESTS && in_request(tid))
		begin(tid, prev->tgid, FB_WAIT_CONDITION, 0, 0);
	return 0;
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

/* Whether somebody else has opened the connection. An accepted unix socket has the address of the one that listens. */
INLINE int is_accepted(struct sock *sk)
{
	u64 key = (u64)sk;
	if (sk->__sk_common.skc_family != AF_UNIX)
		return bpf_map_lookup_elem(&accepted, &key) != 0;
	struct unix_address *address = 0;
	READ(address, ((struct unix_sock *)sk)->addr);
	return sk->__sk_common.skc_state == TCP_ESTABLISHED && address;
}

/* A task works no longer for the request that it has read from this socket. */
INLINE void works_no_longer(u32 tid, u64 sk)
{
	struct request *request = bpf_map_lookup_elem(&requests, &tid);
	if (request && request->sock == sk)
		bpf_map_delete_elem(&requests, &tid);
}

/* The request that was read from this socket needs nobody's work any more. */
INLINE void answered(u64 sk)
{
	u32 *reader = bpf_map_lookup_elem(&readers, &sk);
	if (reader) {
		works_no_longer(*reader, sk);
		bpf_map_delete_elem(&readers, &sk);
	}
}

SEC("tp_btf/inet_sock_set_state")
int on_tcp_state(u64 *ctx)
{
	u64 sk = ctx[0];
	u32 before = ctx[1], now = ctx[2];
	if (before == TCP_SYN_RECV && now == TCP_ESTABLISHED)
		bpf_map_update_elem(&accepted, &sk, &now, BPF_ANY);
	else if (now == TCP_CLOSE) {
		bpf_map_delete_elem(&accepted, &sk);
		answered(sk);
	}
	return 0;
}

SEC("tp_btf/sock_recv_length")
int on_receive(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	s32 length = ctx[1];
	u64 key = (u64)sk;
	u32 tid = bpf_get_current_pid_tgid();
	u32 role = role_of(tid);
	if ((role & FB_ROLE_CRITICAL) != FB_CRITICAL_REQUESTS || length < 0)
		return 0;
	if (!length) {
		answered(key);
		return 0;
	}
	if (!is_accepted(sk))
		return 0;
	/* Whoever has read from it before has handed it on. */
	u32 *reader = bpf_map_lookup_elem(&readers, &key);
	if (reader && *reader != tid)
		works_no_longer(*reader, key);
	struct request request = { .sock = key, .since = bpf_ktime_get_ns() };
	bpf_map_update_elem(&requests, &tid, &request, BPF_ANY);
	bpf_map_update_elem(&readers, &key, &tid, BPF_ANY);
	return 0;
}

SEC("tp_btf/sock_send_length")
int on_send(u64 *ctx)
{
	u64 sk = ctx[0];
	s32 length = ctx[1];
	if (length > 0)
		answered(sk);
	return 0;
}

/* --- lightweight locks ------------------------------------------------------------------------------------------------- */

/* What a task holds of this name, or 0. */
INLINE struct hold *hold_of(u64 name, u32 tid)
{
	struct holding key = { .name = name, .tid = tid };
	struct hold *hold = bpf_map_lookup_elem(&held, &key);
	return hold && bpf_ktime_get_ns() - hold->since < FB_LOCK_NS_MAX ? hold : 0;
}

/* One of those who hold locks of a name, or 0. Whoever holds none any more is struck out. */
INLINE u32 holder_at(struct lock_holders *holding, u32 i, u64 name)
{
	u32 holder = holding->tids[i];
	if (!holder || hold_of(name, holder))
		return holder;
	__sync_val_compare_and_swap(&holding->tids[i], holder, 0);
	return 0;
}

/* The current task begins to wait for a lock of this name. */
NOINLINE int begin_lock(u64 name, u32 tid, u32 tgid)
{
	struct block own = {}, *block = &own;
	struct lock_holders *holding = bpf_map_lookup_elem(&lock_holders, &name);
	u32 critical = criticality(tid), supposed = is_supposed(tid, critical);
	block->since = bpf_ktime_get_ns();
	block->wait = FB_WAIT_LWLOCK;
	block->direct = critical == FB_CRITICAL_DIRECT;
	block->payers = payers_by(tid, critical);
	for (u32 i = 0; i < FB_HOLDERS_MAX && holding; i++) {
		u32 holder = holder_at(holding, i, name);
		if (!holder || holder == tid)
			continue;
		block->owner = holder;
		if (!critical || block->links >= FB_CHAIN_MAX || !inherit(holder, SAKE(tid, block->payers), FB_WAIT_LWLOCK, 0, 0))
			continue;
		tell_wait(tid, tgid, critical, block, block->payers);
		lend(block, holder, bpf_map_lookup_elem(&blocked, &holder), tid, FB_WAIT_LWLOCK, supposed);
	}
	lend_to_sleepers(block, tid);
	put(tid, block);
	return 0;
}

/* The current task holds one more lock of this name. */
NOINLINE int hold_lock(u64 name, u32 tid)
{
	struct hold *hold = hold_of(name, tid);
	if (hold) {
		hold->count += 1;
		return 0;
	}
	struct holding key = { .name = name, .tid = tid };
	struct hold one = { .count = 1, .since = bpf_ktime_get_ns() };
	bpf_map_update_elem(&held, &key, &one, BPF_ANY);
	struct lock_holders none = {};
	bpf_map_update_elem(&lock_holders, &name, &none, BPF_NOEXIST);
	struct lock_holders *holding = bpf_map_lookup_elem(&lock_holders, &name);
	for (u32 i = 0; i < FB_HOLDERS_MAX && holding; i++)
		holder_at(holding, i, name);
	strike(holding, tid);
	enlist(holding, tid);
	return 0;
}

/* It has given one back. */
NOINLINE int release_lock(u64 name, u32 tid)
{
	struct holding key = { .name = name, .tid = tid };
	struct hold *hold = bpf_map_lookup_elem(&held, &key);
	if (!hold)
		return 0;
	if (hold->count > 1) {
		hold->count -= 1;
		return 0;
	}
	bpf_map_delete_elem(&held, &key);
	strike(bpf_map_lookup_elem(&lock_holders, &name), tid);
	return 0;
}

SEC("uprobe")
int on_lwlock(void *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 kind = cookie & 0xff;
	u32 form = cookie >> 8 & 0xff;
	s64 offset = (s32)(cookie >> 32);
	u64 name = offset;
	if (form != FB_ARGUMENT_CONSTANT && bpf_probe_read_kernel(&name, sizeof(name), ctx + (cookie >> 16 & 0xffff)))
		return 0;
	if (form == FB_ARGUMENT_MEMORY && bpf_probe_read_user(&name, sizeof(name), (void *)(name + offset)))
		return 0;
	u64 ids = bpf_get_current_pid_tgid();
	u32 tid = ids;
	if (kind == FB_LWLOCK_WAIT) {
		end(tid, ids >> 32);
		begin_lock(name, tid, ids >> 32);
	} else if (kind == FB_LWLOCK_WAITED) {
		struct block *block = bpf_map_lookup_elem(&blocked, &tid);
		if (block && block->wait == FB_WAIT_LWLOCK)
			end(tid, ids >> 32);
	} else if (kind == FB_LWLOCK_ACQUIRE) {
		hold_lock(name, tid);
	} else if (kind == FB_LWLOCK_RELEASE) {
		release_lock(name, tid);
	}
	return 0;
}

/* --- tasks ------------------------------------------------------------------------------------------------------------- */

INLINE void forget(u32 tid, u32 tgid)
{
	end(tid, tgid);
	set_role(tid, 0);
	bpf_map_delete_elem(&holders, &tid);
	bpf_map_delete_elem(&pages, &tid);
	bpf_map_delete_elem(&requests, &tid);
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0];
	struct task_struct *child = (void *)ctx[1];
	/* Its number was another task's, of which something may have come too late to be forgotten. It does not run yet. */
	forget(child->pid, child->tgid);
	u32 bounds = bound_by(role_of(parent->pid));
	if (bounds)
		set_role(child->pid, bounds);
	struct fb_signal signal = { .type = FB_SIGNAL_FORK, .tid = parent->pid, .tgid = child->tgid, .other = child->pid };
	current_comm(signal.comm);
	tell(&signal);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct fb_signal signal = { .type = FB_SIGNAL_EXEC, .tid = task->pid, .tgid = task->tgid };
	current_comm(signal.comm);
	tell(&signal);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 tid = task->pid;
	forget(tid, task->tgid);
	struct fb_signal signal = { .type = FB_SIGNAL_EXIT, .tid = tid, .tgid = task->tgid };
	current_comm(signal.comm);
	tell(&signal);
	return 0;
}
