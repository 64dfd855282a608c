/*
 * Processes that share lightweight locks and tell of them as PostgreSQL does, by static probes (USDT): lwlocks DIRECTORY [SECONDS [fresh]]
 *
 * fb-back holds a lock while it writes; fb-critical waits for it on a semaphore, which has no owner that anybody could read. "fresh": it does so
 * once, soon after its start, and then there is another one.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256 << 10)

/* What <sys/sdt.h> makes, for one argument in a register or in memory. */
#define PROBE(name, argument)                                                                              \
	do {                                                                                               \
		if (!listeners_##name)                                                                     \
			break;                                                                             \
		__asm__ volatile("990: nop\n"                                                              \
				 ".pushsection .note.stapsdt,\"?\",\"note\"\n"                             \
				 ".balign 4\n .4byte 992f-991f, 994f-993f, 3\n"                            \
				 "991: .asciz \"stapsdt\"\n992: .balign 4\n"                               \
				 "993: .8byte 990b\n .8byte _.stapsdt.base\n .8byte listeners_" #name "\n" \
				 ".asciz \"postgresql\"\n .asciz \"" #name "\"\n .asciz \"8@%0 4@$0\"\n"   \
				 "994: .balign 4\n.popsection\n"                                           \
				 ".ifndef _.stapsdt.base\n"                                                \
				 ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"   \
				 ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"                          \
				 "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n.endif"  \
				 ::"r"(argument));                                                         \
	} while (0)

#define LISTENERS(name) volatile unsigned short listeners_##name __attribute__((section(".probes"), used))
LISTENERS(lwlock__wait__start);
LISTENERS(lwlock__wait__done);
LISTENERS(lwlock__acquire);
LISTENERS(lwlock__release);

/* The processes: one that waits, one that holds the lock, and one that only writes. */
enum { CRITICAL, BACK, APART, KINDS };

static const char tranche[] = "WALWrite";
static const char *path;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void acquire(sem_t *lock)
{
	if (sem_trywait(lock)) {
		PROBE(lwlock__wait__start, tranche);
		while (sem_wait(lock))
			;
		PROBE(lwlock__wait__done, tranche);
	}
	PROBE(lwlock__acquire, tranche);
}

static void release(sem_t *lock)
{
	PROBE(lwlock__release, tranche);
	sem_post(lock);
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

/* A writer of this name that holds the lock while it writes (`held`), or only writes; again and again, or once. */
static void back(sem_t *lock, const char *name, int held, int once)
{
	prctl(PR_SET_NAME, name);
	char full[4096];
	snprintf(full, sizeof(full), "%s/%s", path, name);
	int fd = open(full, O_RDWR | O_CREAT | O_DSYNC, 0600);
	void *data;
	if (fd < 0 || posix_memalign(&data, 4096, PIECE))
		fail(full);
	memset(data, 'x', PIECE);
	if (once)
		pause_ms(150);
	do {
		if (held)
			acquire(lock);
		for (int i = 0; i < 8; i++)
			if (pwrite(fd, data, 16 << 10, (off_t)i * PIECE) != 16 << 10)
				fail("pwrite");
		if (held)
			release(lock);
		pause_ms(5);
	} while (!once);
	_exit(0);
}

static void critical(sem_t *lock)
{
	prctl(PR_SET_NAME, "fb-critical");
	for (;;) {
		acquire(lock);
		release(lock);
		pause_ms(1);
	}
}

/* A process that does this until it is killed, or once; it ends with this one. */
static pid_t start(sem_t *lock, int which, int once)
{
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (which == CRITICAL)
			critical(lock);
		back(lock, which == BACK ? "fb-back" : "fb-apart", which == BACK, once);
	}
	return child;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: %s DIRECTORY [SECONDS [fresh]]\n", argv[0]);
		return 2;
	}
	path = argv[1];
	sem_t *lock = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (lock == MAP_FAILED || sem_init(lock, 1, 1))
		fail("shared memory");
	int seconds = argc > 2 ? atoi(argv[2]) : 3;
	int fresh = argc > 3;
	pid_t children[KINDS];
	for (int which = 0; which < KINDS; which++) {
		children[which] = start(lock, which, which == BACK && fresh);
		/* The program is looked at within a second or two, and a new process of it when it comes. */
		if (which == CRITICAL && fresh)
			pause_ms(2000);
	}
	pause_ms(fresh ? 0 : 3000 + 1000L * seconds);
	for (int i = 0; fresh && i < 5 * seconds; i++) {
		waitpid(children[BACK], NULL, 0);
		children[BACK] = start(lock, BACK, 1);
	}
	for (int which = 0; which < KINDS; which++) {
		kill(children[which], SIGKILL);
		waitpid(children[which], NULL, 0);
	}
	return 0;
}
