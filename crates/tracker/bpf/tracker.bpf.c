/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who issues the writes of attached volumes, and who waits for whom.
 *
 *   block_bio_queue        a write is queued: its tag, with the issuer and how it is critical, goes into the ring `tags`
 *   contention_begin/end   a task waits for a kernel mutex or rwsem: its owner inherits until the wait is over
 *   folio_wait_writeback   a task is about to wait for a page that is being written: the daemon promotes that write
 *   sched_switch           a task falls asleep: what for is seen by its stack (journal, page, buffer) or its futex
 *   sched_process_*        tasks come and go
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
	__uint(max_entries, FB_SIGNALS_BYTES);
} signals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FB_DISKS_MAX);
	__type(key, u32);
	__type(value, u32);
} disks SEC(".maps");

/* What the daemon's rules say of a task. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FB_TASKS_MAX);
	__type(key, u32);
	__type(value, struct fb_role);
} roles SEC(".maps");

/* How many critical tasks a task holds up, and one of them. */
struct holder {
	s64 count;
	u32 waiter;
	u32 wait;
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
	u32 wait;
	u32 owner;
	u32 told;	/* the daemon knows of this wait */
	u32 links;
	u32 journal;	/* one of the links waits for the journal */
	u32 chain[FB_CHAIN_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FB_RANGES_MAX);
	__type(key, u32);
	__type(value, struct fb_range);
} ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FB_COUNTS);
	__type(key, u32);
	__type(value, s64);
} counts SEC(".maps");

struct stack {
	u64 frames[FB_FRAMES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stack);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct block);
} scratch SEC(".maps");

INLINE void count(u32 which, s64 by)
{
	s64 *value = bpf_map_lookup_elem(&counts, &which);
	if (value)
		__sync_fetch_and_add(value, by);
}

INLINE s64 counted(u32 which)
{
	s64 *value = bpf_map_lookup_elem(&counts, &which);
	return value ? *value : 0;
}

/* Whether the current task says of itself that it works for a request. */
INLINE int hinted(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct io_context *context = 0;
	u16 ioprio = 0;
	if (READ(context, task->io_context) || !context)
		return 0;
	READ(ioprio, context->ioprio);
	return (ioprio >> FB_HINT_SHIFT & FB_HINT_MASK) == FB_HINT_CRITICAL;
}

/* How the current task is critical now. */
INLINE u32 criticality(u32 tid)
{
	if (hinted())
		return FB_CRITICAL_DIRECT;
	struct fb_role *role = bpf_map_lookup_elem(&roles, &tid);
	if (role && role->critical)
		return FB_CRITICAL_DIRECT;
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	return holder && holder->count > 0 ? FB_CRITICAL_INHERITED : FB_CRITICAL_NONE;
}

INLINE void tell(struct fb_signal *signal)
{
	if (bpf_ringbuf_output(&signals, signal, sizeof(*signal), 0))
		count(FB_COUNT_SIGNALS_DROPPED, 1);
}

INLINE int is_journal(const char *comm)
{
	return comm[0] == 'j' && comm[1] == 'b' && comm[2] == 'd' && comm[3] == '2' && comm[4] == '/';
}

/* --- writes ------------------------------------------------------------------------------------------------------------ */

/* Where the first page of a bio belongs. A name to find the write by that a page waits for; 0 if it has none. */
INLINE void name_page(struct bio *bio, struct fb_tag *tag)
{
	struct bio_vec *vec = bio->bi_io_vec;
	struct page *page = 0;
	u32 offset = 0;
	unsigned long head = 0;
	if (!vec || READ(page, vec->bv_page) || !page)
		return;
	READ(offset, vec->bv_offset);
	READ(head, page->compound_head);
	struct folio *folio = (void *)page;
	if (head & 1) {
		folio = (void *)(head - 1);
		/* A page's description has 64 bytes. */
		tag->pages = ((u64)page - (u64)folio) / 64;
	}
	READ(tag->mapping, folio->mapping);
	READ(tag->index, folio->index);
	tag->index += tag->pages + (offset >> 12);
}

SEC("tp_btf/block_bio_queue")
int on_bio(u64 *ctx)
{
	struct bio *bio = (void *)ctx[0];
	u32 op = bio->bi_opf & 0xff;
	/* Writes and zeroes; discards and flushes carry nothing that anybody chooses a way for. */
	if (op != 1 && op != 9)
		return 0;
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	u32 device = (u32)disk->major << 20 | (u32)disk->first_minor;
	if (!bpf_map_lookup_elem(&disks, &device) || !bio->bi_iter.bi_size)
		return 0;
	struct fb_tag tag = {};
	u64 ids = bpf_get_current_pid_tgid();
	tag.tid = ids;
	tag.tgid = ids >> 32;
	tag.device = device;
	tag.sector = bio->bi_iter.bi_sector;
	tag.bytes = bio->bi_iter.bi_size;
	tag.flags = bio->bi_opf;
	tag.ioprio = bio->bi_ioprio;
	bpf_get_current_comm(tag.comm, sizeof(tag.comm));
	struct fb_role *role = bpf_map_lookup_elem(&roles, &tag.tid);
	struct holder *holder = bpf_map_lookup_elem(&holders, &tag.tid);
	if ((role && role->critical) || hinted()) {
		tag.critical = FB_CRITICAL_DIRECT;
	} else if (holder && holder->count > 0) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.waiter = holder->waiter;
		tag.via = holder->wait;
	} else if (is_journal(tag.comm) && counted(FB_COUNT_JOURNAL_WAITERS) > 0) {
		tag.critical = FB_CRITICAL_INHERITED;
		tag.via = FB_WAIT_JOURNAL;
	}
	if (!role || !role->seen) {
		struct fb_role seen = { .critical = role ? role->critical : 0, .seen = 1 };
		bpf_map_update_elem(&roles, &tag.tid, &seen, BPF_ANY);
		struct fb_signal signal = { .type = FB_SIGNAL_SEEN, .tid = tag.tid, .tgid = tag.tgid };
		__builtin_memcpy(signal.comm, tag.comm, sizeof(tag.comm));
		tell(&signal);
	}
	if (op == 1)
		name_page(bio, &tag);
	/* Frontends look into the ring when a request comes; nobody is woken. */
	if (bpf_ringbuf_output(&tags, &tag, sizeof(tag), BPF_RB_NO_WAKEUP))
		count(FB_COUNT_TAGS_DROPPED, 1);
	return 0;
}

/* --- waits ------------------------------------------------------------------------------------------------------------- */

INLINE void inherit(u32 tid, u32 waiter, u32 wait)
{
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	if (holder) {
		__sync_fetch_and_add(&holder->count, 1);
		holder->waiter = waiter;
		holder->wait = wait;
		return;
	}
	struct holder first = { .count = 1, .waiter = waiter, .wait = wait };
	bpf_map_update_elem(&holders, &tid, &first, BPF_ANY);
}

INLINE void disinherit(u32 tid)
{
	struct holder *holder = bpf_map_lookup_elem(&holders, &tid);
	if (!holder)
		return;
	__sync_fetch_and_add(&holder->count, -1);
	if (holder->count <= 0)
		bpf_map_delete_elem(&holders, &tid);
}

INLINE void tell_wait(u32 tid, u32 tgid, u32 critical, const struct block *block)
{
	struct fb_signal signal = {
		.type = FB_SIGNAL_WAIT, .tid = tid, .tgid = tgid, .other = block->owner, .wait = block->wait,
		.critical = critical, .mapping = block->mapping, .index = block->index,
	};
	bpf_get_current_comm(signal.comm, sizeof(signal.comm));
	tell(&signal);
}

/*
 * The current task begins to wait. If it is critical, whoever it waits for inherits, and whoever that one waits for, to the
 * end of the chain.
 */
NOINLINE int begin(u32 tid, u32 tgid, u32 wait, u32 owner)
{
	u32 zero = 0;
	struct block *block = bpf_map_lookup_elem(&scratch, &zero);
	if (!block)
		return 0;
	__builtin_memset(block, 0, sizeof(*block));
	block->since = bpf_ktime_get_ns();
	block->wait = wait;
	block->owner = owner;
	if (wait == FB_WAIT_WRITEBACK) {
		struct page_wait *page = bpf_map_lookup_elem(&pages, &tid);
		if (page) {
			block->mapping = page->mapping;
			block->index = page->index;
		}
	}
	u32 critical = criticality(tid);
	if (!critical && counted(FB_COUNT_JOURNAL_WAITERS) > 0) {
		/* Whoever waits for the journal waits for what its thread waits for. */
		char comm[16] = {};
		bpf_get_current_comm(comm, sizeof(comm));
		critical = is_journal(comm) ? FB_CRITICAL_INHERITED : FB_CRITICAL_NONE;
	}
	if (critical) {
		block->told = 1;
		block->journal = wait == FB_WAIT_JOURNAL;
		tell_wait(tid, tgid, critical, block);
		u32 next = owner;
		for (u32 i = 0; i < FB_CHAIN_MAX; i++) {
			if (!next || next == tid)
				break;
			inherit(next, tid, wait);
			block->chain[i] = next;
			block->links = i + 1;
			struct block *further = bpf_map_lookup_elem(&blocked, &next);
			if (!further)
				break;
			tell_wait(next, 0, FB_CRITICAL_INHERITED, further);
			block->journal |= further->wait == FB_WAIT_JOURNAL;
			next = further->owner;
		}
		if (block->journal)
			count(FB_COUNT_JOURNAL_WAITERS, 1);
	}
	bpf_map_update_elem(&blocked, &tid, block, BPF_ANY);
	return 0;
}

/* A task's wait is over. */
NOINLINE int end(u32 tid, u32 tgid)
{
	struct block *block = bpf_map_lookup_elem(&blocked, &tid);
	if (!block)
		return 0;
	for (u32 i = 0; i < FB_CHAIN_MAX; i++) {
		if (i >= block->links)
			break;
		disinherit(block->chain[i]);
	}
	if (block->journal)
		count(FB_COUNT_JOURNAL_WAITERS, -1);
	if (block->told) {
		struct fb_signal signal = {
			.type = FB_SIGNAL_WAITED, .tid = tid, .tgid = tgid, .other = block->owner, .wait = block->wait,
			.value = bpf_ktime_get_ns() - block->since, .critical = FB_CRITICAL_DIRECT,
		};
		bpf_get_current_comm(signal.comm, sizeof(signal.comm));
		tell(&signal);
	}
	bpf_map_delete_elem(&blocked, &tid);
	return 0;
}

SEC("tp_btf/contention_begin")
int on_contention_begin(u64 *ctx)
{
	u64 lock = ctx[0];
	u32 flags = ctx[1];
	u64 ids = bpf_get_current_pid_tgid();
	u32 wait;
	s64 owner = 0;
	if (flags == 32) {
		wait = FB_WAIT_MUTEX;
		struct mutex *mutex = (void *)lock;
		READ(owner, mutex->owner);
	} else if (flags == 2 || flags == 4) {
		wait = FB_WAIT_RWSEM;
		struct rw_semaphore *sem = (void *)lock;
		READ(owner, sem->owner);
	} else {
		return 0;
	}
	struct task_struct *task = (void *)(owner & ~7ull);
	s32 pid = 0;
	if (task)
		READ(pid, task->pid);
	begin(ids, ids >> 32, wait, pid);
	return 0;
}

SEC("tp_btf/contention_end")
int on_contention_end(u64 *ctx)
{
	u64 ids = bpf_get_current_pid_tgid();
	u32 tid = ids;
	struct block *block = bpf_map_lookup_elem(&blocked, &tid);
	if (block && (block->wait == FB_WAIT_MUTEX || block->wait == FB_WAIT_RWSEM))
		end(tid, ids >> 32);
	return 0;
}

SEC("tp_btf/folio_wait_writeback")
int on_folio_wait(u64 *ctx)
{
	struct folio *folio = (void *)ctx[0];
	u32 tid = bpf_get_current_pid_tgid();
	if (!criticality(tid) && !bpf_map_lookup_elem(&roles, &tid))
		return 0;
	struct page_wait wait = {};
	wait.mapping = (u64)folio->mapping;
	wait.index = folio->index;
	bpf_map_update_elem(&pages, &tid, &wait, BPF_ANY);
	return 0;
}

/* What a task waits for that sleeps at this address of the kernel. */
NOINLINE int wait_at(u64 at)
{
	for (u32 r = 0; r < FB_RANGES_MAX; r++) {
		u32 key = r;
		struct fb_range *range = bpf_map_lookup_elem(&ranges, &key);
		if (!range || !range->to)
			break;
		if (at >= range->from && at < range->to)
			return range->wait;
	}
	return FB_WAIT_NONE;
}

/* What the current task waits for, by its stack; the most telling frame counts. */
INLINE u32 wait_by_stack(void *ctx)
{
	u32 zero = 0;
	struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
	if (!stack)
		return FB_WAIT_NONE;
	long bytes = bpf_get_stack(ctx, stack->frames, sizeof(stack->frames), 0);
	u32 found = FB_WAIT_NONE;
	for (u32 f = 0; f < FB_FRAMES_MAX; f++) {
		if ((long)(f * 8) >= bytes)
			break;
		u32 wait = wait_at(stack->frames[f]);
		if (wait && (!found || wait < found))
			found = wait;
	}
	return found;
}

/* The owner of the pthread mutex whose futex the current task waits for; 0 if it waits for none. */
INLINE u32 futex_owner(void)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u32 words[3] = {};
	if (REGS_SYSCALL(regs) != SYSCALL_FUTEX)
		return 0;
	if (bpf_probe_read_user(words, sizeof(words), (void *)REGS_FIRST(regs)))
		return 0;
	/* 2: locked, and somebody waits. The owner's tid lies 8 bytes after the futex. */
	return words[0] == 2 ? words[2] : 0;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1];
	struct task_struct *next = (void *)ctx[2];
	u32 state = ctx[3];
	u32 woken = next->pid;
	struct block *was = bpf_map_lookup_elem(&blocked, &woken);
	if (was && was->wait > FB_WAIT_RWSEM) {
		/* Its comm is not the current one; the daemon knows the task by its number. */
		end(woken, next->tgid);
	}
	u32 tid = prev->pid;
	if (!(state & 3) || !tid)
		return 0;
	struct fb_role *role = bpf_map_lookup_elem(&roles, &tid);
	if (!role && !bpf_map_lookup_elem(&holders, &tid) && !hinted())
		return 0;
	/* The wait for a lock has been noted, and is over when the lock is taken. */
	if (bpf_map_lookup_elem(&blocked, &tid))
		return 0;
	if (state & 1) {
		u32 owner = futex_owner();
		if (owner)
			begin(tid, prev->tgid, FB_WAIT_FUTEX, owner);
		return 0;
	}
	u32 wait = wait_by_stack(ctx);
	if (!wait)
		return 0;
	begin(tid, prev->tgid, wait, 0);
	return 0;
}

/* --- tasks ------------------------------------------------------------------------------------------------------------- */

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0];
	struct task_struct *child = (void *)ctx[1];
	struct fb_signal signal = { .type = FB_SIGNAL_FORK, .tid = parent->pid, .tgid = child->tgid, .other = child->pid };
	bpf_get_current_comm(signal.comm, sizeof(signal.comm));
	tell(&signal);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct fb_signal signal = { .type = FB_SIGNAL_EXEC, .tid = task->pid, .tgid = task->tgid };
	bpf_get_current_comm(signal.comm, sizeof(signal.comm));
	tell(&signal);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 tid = task->pid;
	end(tid, task->tgid);
	bpf_map_delete_elem(&roles, &tid);
	bpf_map_delete_elem(&holders, &tid);
	bpf_map_delete_elem(&pages, &tid);
	struct fb_signal signal = { .type = FB_SIGNAL_EXIT, .tid = tid, .tgid = task->tgid };
	bpf_get_current_comm(signal.comm, sizeof(signal.comm));
	tell(&signal);
	return 0;
}
