/*
 * A server that writes before it answers, and its client: server requests|condition unix|tcp DIRECTORY [SECONDS]
 *
 * srv-main reads a request from an accepted connection, has something written, answers, and then, as srv-after, writes for itself.
 * Beside it srv-back writes all the time. With `condition` it is srv-worker that writes for the request; srv-main waits on a condition
 * variable for it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PIECE (16 << 10)

static const char *path;
static int with_condition;
static volatile int stop;
static int listening;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned wanted, done;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

static int open_file(const char *name)
{
	char full[5000];
	snprintf(full, sizeof(full), "%s/%s", path, name);
	int fd = open(full, O_RDWR | O_CREAT | O_DSYNC, 0600);
	if (fd < 0)
		fail(full);
	return fd;
}

static void put(int fd)
{
	static char data[PIECE];
	static unsigned at;
	if (pwrite(fd, data, PIECE, (off_t)(at++ % 512) * PIECE) != PIECE)
		fail("pwrite");
}

static void *back(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "srv-back");
	int fd = open_file("back");
	while (!stop) {
		put(fd);
		pause_ms(2);
	}
	return NULL;
}

static void *worker(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "srv-worker");
	int fd = open_file("worker");
	while (!stop) {
		pthread_mutex_lock(&mutex);
		while (wanted == done && !stop)
			pthread_cond_wait(&changed, &mutex);
		pthread_mutex_unlock(&mutex);
		put(fd);
		pthread_mutex_lock(&mutex);
		done = wanted;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void have_written(int fd)
{
	if (!with_condition) {
		put(fd);
		return;
	}
	pthread_mutex_lock(&mutex);
	wanted++;
	pthread_cond_broadcast(&changed);
	while (done != wanted)
		pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void *serve(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "srv-main");
	int fd = open_file("main"), after = open_file("after");
	int client = accept(listening, NULL, NULL);
	char byte;
	while (client >= 0 && read(client, &byte, 1) == 1) {
		have_written(fd);
		if (write(client, &byte, 1) != 1)
			fail("answer");
		prctl(PR_SET_NAME, "srv-after");
		put(after);
		prctl(PR_SET_NAME, "srv-main");
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s requests|condition unix|tcp DIRECTORY [SECONDS]\n", argv[0]);
		return 2;
	}
	with_condition = !strcmp(argv[1], "condition");
	path = argv[3];
	int tcp = !strcmp(argv[2], "tcp");
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	snprintf(un.sun_path, sizeof(un.sun_path), "socket.%d", getpid());
	struct sockaddr *address = tcp ? (struct sockaddr *)&in : (struct sockaddr *)&un;
	socklen_t len = tcp ? sizeof(in) : sizeof(un);
	listening = socket(address->sa_family, SOCK_STREAM, 0);
	if (listening < 0 || bind(listening, address, len) || listen(listening, 1) || getsockname(listening, address, &len))
		fail("socket");
	pthread_t threads[3];
	int count = 0;
	pthread_create(&threads[count++], NULL, back, NULL);
	pthread_create(&threads[count++], NULL, serve, NULL);
	if (with_condition)
		pthread_create(&threads[count++], NULL, worker, NULL);
	/* By now it is known what the rules say of them. */
	pause_ms(500);
	prctl(PR_SET_NAME, "cli-main");
	int fd = socket(address->sa_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, address, len))
		fail("connect");
	struct timespec from, now;
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		char byte = 'x';
		if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
			fail("request");
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - from.tv_sec < (argc > 4 ? atoi(argv[4]) : 3));
	close(fd);
	pthread_mutex_lock(&mutex);
	stop = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	while (count)
		pthread_join(threads[--count], NULL);
	if (!tcp)
		unlink(un.sun_path);
	return 0;
}
