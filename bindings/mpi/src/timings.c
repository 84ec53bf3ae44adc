/*
 * timings.c: nonblocking calls whose time counts, natively posted ones and offloaded ones alike, until they complete.
 *
 * What counts of such a call is the time to post it and the time of the MPI_Wait or MPI_Test in which it completed;
 * what tests before took is not counted. A small table: a call that finds it full is not timed, nor is one that
 * completes where the shim does not look. Nothing is paid while the table is empty.
 *
 * In a trial counts, besides, how long the thread that posted the call was ready to compute meanwhile and had no
 * processor: whatever progresses the call, a service process or a thread of the library, may have had it.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "shim.h"

#define TIMED_MOST 64

struct timing {
    MPI_Request request;
    struct group *group;
    struct class *class;
    enum way way;
    struct turn_of of;
    double posting;
    pthread_t poster;
    double delay; /* of the poster in all its life, when last looked at */
    double lost;  /* what the poster has lost since it posted */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timing timings[TIMED_MOST];
static atomic_int used; /* of the table, from its beginning */

/* With the lock held: its position, or TIMED_MOST. */
static int find(MPI_Request request)
{
    for (int at = 0; at < atomic_load_explicit(&used, memory_order_relaxed); at++)
        if (timings[at].request == request)
            return at;
    return TIMED_MOST;
}

/* With the lock held. */
static void drop(int at)
{
    int last = atomic_fetch_sub(&used, 1) - 1;
    timings[at] = timings[last];
}

/* Seconds that this thread has been ready to run and was not; 0 where the kernel does not tell. */
static double delay(void)
{
    char text[64];
    unsigned long long ns = 0;
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length > 0) {
        text[length] = '\0';
        sscanf(text, "%*u %llu", &ns);
    }
    return 1e-9 * (double)ns;
}

static void look(struct timing *timing)
{
    if (timing->of.turn < 0 || !pthread_equal(timing->poster, pthread_self()))
        return;
    double now = delay();
    timing->lost += now - timing->delay;
    timing->delay = now;
}

void timings_enter(MPI_Request request, const struct turn *turn, double seconds)
{
    if (request == MPI_REQUEST_NULL)
        return;
    pthread_mutex_lock(&lock);
    int at = find(request); /* one that completed unseen */
    if (at == TIMED_MOST && atomic_load(&used) < TIMED_MOST)
        at = atomic_fetch_add(&used, 1);
    if (at < TIMED_MOST)
        timings[at] = (struct timing){request, turn->group, turn->class, turn->way, turn->of, seconds,
                                      pthread_self(), turn->of.turn < 0 ? 0 : delay(), 0};
    pthread_mutex_unlock(&lock);
}

bool timings_any(void)
{
    return atomic_load_explicit(&used, memory_order_relaxed) > 0;
}

bool timings_know(int count, const MPI_Request *requests)
{
    bool known = false;
    if (!timings_any())
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        int at = requests[i] == MPI_REQUEST_NULL ? TIMED_MOST : find(requests[i]);
        if (at == TIMED_MOST)
            continue;
        known = true;
        look(&timings[at]);
    }
    pthread_mutex_unlock(&lock);
    return known;
}

void timings_completed(MPI_Request request, double seconds)
{
    pthread_mutex_lock(&lock);
    int at = find(request);
    if (at < TIMED_MOST) {
        struct timing timing = timings[at];
        drop(at);
        choice_timed(timing.class, timing.way, &timing.of, timing.posting + seconds, timing.lost);
    }
    pthread_mutex_unlock(&lock);
}

void timings_forget(MPI_Request request)
{
    if (!timings_any())
        return;
    pthread_mutex_lock(&lock);
    int at = find(request);
    if (at < TIMED_MOST)
        drop(at);
    pthread_mutex_unlock(&lock);
}

void timings_forget_group(const struct group *group)
{
    pthread_mutex_lock(&lock);
    for (int at = atomic_load(&used) - 1; at >= 0; at--)
        if (timings[at].group == group)
            drop(at);
    pthread_mutex_unlock(&lock);
}
