/*
 * Builds one dependency of a critical task on another: waits KIND DIRECTORY [SECONDS]
 *
 * A thread called fb-critical comes to wait for one called fb-back, or for the kernel's threads, while they write. Each kind is one
 * way to wait; fb-critical itself writes next to nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "forebay.h"

#define PIECE (256 << 10)
/* Pages of the kinds "page" and "slot", every other one of a file: neighbours would be one write. */
#define PAGES 1024
#define PAGE_AT(i) ((off_t)(i) * 8192)

static const char *kind;
static char path[4096];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER;
static volatile int stop;
/* A lock of another library's: its third word has nothing to do with who holds it. */
static uint32_t foreign[10] = { 2 };
static int shared = -1;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void name_me(const char *name)
{
	if (prctl(PR_SET_NAME, name))
		fail("prctl");
}

static int open_file(const char *name, int flags)
{
	char full[5000];
	snprintf(full, sizeof(full), "%s/%s", path, name);
	int fd = open(full, O_RDWR | O_CREAT | flags, 0600);
	if (fd < 0)
		fail(full);
	return fd;
}

static char *piece(void)
{
	void *data;
	if (posix_memalign(&data, 4096, PIECE))
		fail("memory");
	memset(data, 'x', PIECE);
	return data;
}

static void put(int fd, const char *data, size_t len, off_t at)
{
	if (pwrite(fd, data, len, at) != (ssize_t)len)
		fail("pwrite");
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

static int is(const char *name)
{
	return !strcmp(kind, name);
}

static int forks(void)
{
	return is("never-forks") || is("hint-forks");
}

/* Synchronous writes, one after the other, while a pthread mutex is held. */
static void write_under(pthread_mutex_t *held, int fd, const char *data)
{
	pthread_mutex_lock(held);
	for (int i = 0; i < 8 && !stop; i++)
		put(fd, data, 16 << 10, (off_t)i * PIECE);
	pthread_mutex_unlock(held);
	pause_ms(2);
}

static void *back(void *unused)
{
	(void)unused;
	name_me("fb-back");
	char *data = piece();
	int fd = open_file("back", is("rwsem") || is("chain") ? O_SYNC | O_DIRECT : is("futex") || is("foreign") ? O_DSYNC : 0);
	off_t end = 0;
	foreign[2] = gettid();
	for (unsigned round = 0; !stop; round++) {
		if (is("futex")) {
			write_under(&mutex, fd, data);
		} else if (is("foreign")) {
			put(fd, data, 4096, 0);
		} else if (is("mutex") || is("released")) {
			/* The file's position is a mutex of the kernel's, held until all is on the disk. */
			for (int i = 0; i < 4 && !stop; i++)
				if (write(shared, data, PIECE) != PIECE)
					fail("write");
			if (lseek(shared, 0, SEEK_SET))
				fail("lseek");
		} else if (is("heir")) {
			/* The same mutex; each gives it to the next. */
			if (write(shared, data, 4096) != 4096)
				fail("write");
			if (lseek(shared, 0, SEEK_SET))
				fail("lseek");
		} else if (is("rwsem") || is("chain")) {
			/* A write that extends the file holds its inode until data and journal are on the disk. */
			put(fd, data, PIECE, end);
			end = (end + PIECE) % (64 * PIECE);
			if (!end && ftruncate(fd, 0))
				fail("ftruncate");
		} else if (forks()) {
			pause_ms(10);
		} else if (is("journal") || is("hint") || is("plain") || is("never")) {
			char name[32];
			snprintf(name, sizeof(name), "file%u", round % 512);
			close(open_file(name, O_TRUNC));
		} else if (is("handle")) {
			/* A handle is open while new pages get their place and stand in the queue of the disk: many writes, for neighbours lie apart in memory. */
			if (ftruncate(shared, 0))
				fail("ftruncate");
			for (int i = 0; i < 2048 && !stop; i++)
				put(shared, data, 4096, (off_t)(i * 977 % 2048) * 4096);
			if (fsync(shared))
				fail("fsync");
		} else if (is("page") || is("slot")) {
			/* Each page is locked while it is submitted, and the queue of the disk is full. Only fsync waits for the writes themselves. */
			for (int i = 0; i < PAGES && !stop; i++)
				put(shared, data, 4096, PAGE_AT(i));
			if (is("page") ? fsync(shared) : sync_file_range(shared, 0, 0, SYNC_FILE_RANGE_WRITE))
				fail("write back");
		} else if (is("locked")) {
			/* A page that has changed again while it was being written: it is locked by whoever waits for that to write it once more. */
			put(shared, data, 4096, 0);
			if (sync_file_range(shared, 0, 4096, SYNC_FILE_RANGE_WRITE))
				fail("sync_file_range");
			put(shared, data, 4096, 0);
			if (fdatasync(shared))
				fail("fdatasync");
		} else if (is("flush")) {
			/* Each ends with a commit of the journal: a write that a flush goes before, and another comes after. */
			put(fd, data, 4096, end);
			end = (end + 4096) % (64 * PIECE);
			if (fsync(fd) || (!end && ftruncate(fd, 0)))
				fail("fsync");
		} else if (is("checkpoint")) {
			/* More than the journal has room for, so that this one has to make some: it writes its superblock then. */
			char name[16];
			snprintf(name, sizeof(name), "%d", round % 512);
			int made = open_file(name, O_TRUNC);
			put(made, data, 1, 0);
			close(made);
			put(shared, data, 1, 0);
		} else if (is("conversion")) {
			/* Where the journal knows of nothing written yet; and commits of its own. */
			if (ftruncate(shared, 0) || posix_fallocate(shared, 0, 8 * PIECE))
				fail("fallocate");
			for (int i = 0; i < 8 && !stop; i++)
				put(shared, data, PIECE, (off_t)i * PIECE);
			if (sync_file_range(shared, 0, 0, SYNC_FILE_RANGE_WRITE))
				fail("sync_file_range");
			put(fd, data, 1, 0);
			if (fsync(fd))
				fail("fsync");
		} else {
			/* The kernel's own thread writes what was left dirty. */
			for (int i = 0; i < 64 && !stop; i++)
				put(shared, data, PIECE, (off_t)i * PIECE);
			if (syncfs(shared))
				fail("syncfs");
		}
	}
	return NULL;
}

/* In the middle of a chain: holds a mutex that fb-critical wants, and wants the inode that fb-back holds. */
static void *middle(void *unused)
{
	(void)unused;
	name_me("fb-middle");
	int fd = open_file("back", 0);
	while (!stop) {
		pthread_mutex_lock(&outer);
		put(fd, "y", 1, 0);
		pthread_mutex_unlock(&outer);
		pause_ms(1);
	}
	return NULL;
}

/* Gives the lock that fb-critical waits for on to fb-back, and writes what nobody waits for then: a log, as its file is called. */
static void *former(void *unused)
{
	(void)unused;
	name_me("fb-apart");
	char *data = piece();
	int fd = open_file("pg_wal/former", O_DSYNC);
	while (!stop) {
		if (write(shared, data, 4096) != 4096)
			fail("write");
		for (int i = 0; i < 4 && !stop; i++)
			put(fd, data, 4096, i * 4096);
	}
	return NULL;
}

/* Waits for what it has written itself, and has locked nothing meanwhile; then for a commit of the journal, as nobody else asks for. */
static void *apart(void *unused)
{
	(void)unused;
	name_me("fb-apart");
	char *data = piece();
	int fd = open_file("apart", 0);
	off_t size = 8192;
	while (!stop) {
		put(fd, data, 4096, 0);
		if (sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
			fail("sync_file_range");
		if (ftruncate(fd, size ^= 4096) || fsync(fd))
			fail("fsync");
	}
	return NULL;
}

static void *critical(void *unused)
{
	(void)unused;
	int never = is("never") || is("never-forks");
	if (is("hint") || is("hint-forks") || is("plain") || never) {
		name_me(never ? "fb-never" : "fb-hinting");
		/* So that the rules have been asked. */
		pause_ms(never || forks() ? 1000 : 0);
		if (!is("plain") && forebay_critical_begin() < 0)
			fail("forebay_critical_begin");
	} else {
		name_me("fb-critical");
	}
	int own = open_file("critical", forks() ? O_DSYNC : 0);
	int of_back = open_file("back", is("rwsem") ? O_APPEND : 0);
	if (is("flush") && fsync(own))
		fail("fsync");
	while (!stop) {
		if (is("futex")) {
			pthread_mutex_lock(&mutex);
			pthread_mutex_unlock(&mutex);
		} else if (is("chain")) {
			pthread_mutex_lock(&outer);
			pthread_mutex_unlock(&outer);
		} else if (is("mutex") || is("released") || is("heir")) {
			if (lseek(shared, 0, SEEK_CUR) < 0)
				fail("lseek");
		} else if (forks()) {
			/* The child writes at once, before anybody can have looked at it. */
			pid_t child = fork();
			if (!child)
				_exit(pwrite(own, path, sizeof(path), 0) != sizeof(path));
			int status = 0;
			if (child < 0 || waitpid(child, &status, 0) < 0 || status)
				fail("fork");
		} else if (is("foreign")) {
			struct timespec t = { 0, 50000000 };
			syscall(SYS_futex, foreign, FUTEX_WAIT_PRIVATE, 2, &t, NULL, 0);
		} else if (is("rwsem")) {
			if (write(of_back, "z", 1) != 1)
				fail("write");
		} else if (is("page") || is("slot")) {
			for (int i = 0; i < PAGES && !stop; i++)
				put(shared, "z", 1, PAGE_AT(i));
		} else if (is("locked")) {
			put(shared, "z", 1, 0);
		} else if (is("journal") || is("handle") || is("hint") || is("plain") || is("never")) {
			put(own, "z", 1, 0);
			if (fsync(own))
				fail("fsync");
		} else if (is("flush")) {
			/* Nothing of its own is to be written. */
			if (fdatasync(own))
				fail("fdatasync");
		} else if (is("conversion")) {
			/* It takes no part in the journal itself. */
			if (sync_file_range(shared, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE))
				fail("sync_file_range");
		} else if (fsync(shared)) {
			fail("fsync");
		}
		/* Long enough for the other to write what nobody waits for. A superblock is written seldom: somebody is to wait for a flush by then. */
		pause_ms(is("mutex") ? 20 : is("checkpoint") ? 0 : 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s futex|foreign|mutex|released|heir|rwsem|hint|hint-forks|plain|never|never-forks|journal|checkpoint|handle|page|slot|locked|flush|conversion|writeback|chain DIRECTORY [SECONDS]\n", argv[0]);
		return 2;
	}
	kind = argv[1];
	snprintf(path, sizeof(path), "%s", argv[2]);
	int seconds = argc > 3 ? atoi(argv[3]) : 3;
	shared = open_file("shared", is("mutex") || is("released") || is("heir") ? O_DSYNC : 0);
	pthread_t threads[6];
	int count = 0;
	pthread_create(&threads[count++], NULL, critical, NULL);
	/* By now it is known to be critical. */
	pause_ms(500);
	/* Of several each but the first is waited for from when it gets what they all want. */
	for (int backs = is("heir") ? 4 : 1; backs; backs--)
		pthread_create(&threads[count++], NULL, back, NULL);
	if (is("chain"))
		pthread_create(&threads[count++], NULL, middle, NULL);
	if (is("locked"))
		pthread_create(&threads[count++], NULL, apart, NULL);
	if (is("released"))
		pthread_create(&threads[count++], NULL, former, NULL);
	pause_ms(1000L * seconds);
	stop = 1;
	while (count)
		pthread_join(threads[--count], NULL);
	return 0;
}
