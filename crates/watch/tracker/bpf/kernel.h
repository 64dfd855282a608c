/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs need of the kernel: only the fields that are read, relocated to where the running kernel has them (CO-RE),
 * and the helpers that are called.
 */
#ifndef FOREBAY_KERNEL_H
#define FOREBAY_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* Checked by the verifier once, for any arguments, and not again at each call. */
#define NOINLINE __attribute__((noinline))
#define CORE __attribute__((preserve_access_index))

#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_F_MMAPABLE = 1024 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_get_stack)(void *ctx, void *buf, u32 size, u64 flags) = (void *)67;
static long (*bpf_probe_read_user)(void *dst, u32 size, const void *src) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, u32 size, const void *src) = (void *)113;
static long (*bpf_probe_read_kernel_str)(void *dst, u32 size, const void *src) = (void *)115;
static long (*bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static long (*bpf_task_pt_regs)(void *task) = (void *)175;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;

struct gendisk {
	int major;
	int first_minor;
} CORE;

struct block_device {
	struct gendisk *bd_disk;
} CORE;

struct hlist_node;

struct hlist_head {
	struct hlist_node *first;
} CORE;

struct qstr {
	const unsigned char *name;
} CORE;

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	union {
		void *d_alias;
	} d_u;
} CORE;

struct inode {
	struct hlist_head i_dentry;
} CORE;

struct address_space {
	struct inode *host;
} CORE;

struct page {
	unsigned long compound_head;
} CORE;

struct folio {
	struct address_space *mapping;
	unsigned long index;
} CORE;

struct bio_vec {
	struct page *bv_page;
	unsigned int bv_len;
	unsigned int bv_offset;
} CORE;

struct bvec_iter {
	u64 bi_sector;
	unsigned int bi_size;
} CORE;

struct bio {
	struct block_device *bi_bdev;
	u32 bi_opf;
	u16 bi_flags;
	u16 bi_ioprio;
	struct bvec_iter bi_iter;
	struct bio_vec *bi_io_vec;
} CORE;

struct request_queue {
	struct gendisk *disk;
} CORE;

/* The block layer's; what follows three underscores is not part of the name that is looked for. */
struct request___disk {
	struct request_queue *q;
	u32 cmd_flags;
	int internal_tag;
	u64 __sector;
} CORE;

struct io_context {
	u16 ioprio;
} CORE;

struct task_struct {
	struct io_context *io_context;
	void *journal_info;
	int pid;
	int tgid;
	char comm[16];
} CORE;

struct sock_common {
	u16 skc_family;
	volatile u8 skc_state;
} CORE;

struct sock {
	struct sock_common __sk_common;
} CORE;

struct unix_address;

struct unix_sock {
	struct unix_address *addr;
} CORE;

typedef struct {
	s64 counter;
} atomic_long_t;

struct mutex {
	atomic_long_t owner;
} CORE;

struct rw_semaphore {
	atomic_long_t owner;
} CORE;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long di;
	unsigned long orig_ax;
} CORE;
#define SYSCALL_FUTEX 202
#define REGS_SYSCALL(regs) ((regs)->orig_ax)
#define REGS_FIRST(regs) ((regs)->di)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 orig_x0;
	s32 syscallno;
} CORE;
#define SYSCALL_FUTEX 98
#define REGS_SYSCALL(regs) ((regs)->syscallno)
#define REGS_FIRST(regs) ((regs)->orig_x0)
#else
#error "no such machine"
#endif

/*
 * Of jbd2, which may be a module, whose types the kernel's BTF does not have: a handle begins with its transaction, and a
 * transaction with its journal, its number and its state, in all kernels that have jbd2.
 */
#define TRANSACTION_STATE 12
#define TRANSACTION_LOCKED 1

#define AF_UNIX 1
#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7

/* Whether the running kernel has a field. */
#define EXISTS(field) __builtin_preserve_field_info(field, 2)

/* Where the running kernel has a field, in bytes from the beginning of its structure. */
#define OFFSET(field) __builtin_preserve_field_info(field, 0)

/* Reads a field that the verifier does not know to be readable. */
#define READ(dst, field) bpf_probe_read_kernel(&(dst), sizeof(dst), __builtin_preserve_access_index(&(field)))

#endif
