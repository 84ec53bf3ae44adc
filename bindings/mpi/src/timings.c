/*
 * timings.c: timed nonblocking calls, native and offloaded, until they complete.
 *
 * The time of such a call is the time to post it plus the time of the MPI_Wait or MPI_Test in which it completes;
 * earlier tests are not counted. The table is small: a call that finds the table full is not timed. Nor is a call timed
 * that completes in a function that the shim does not interpose. An empty table costs nothing.
 *
 * In a trial the posting thread's lost time is added: the time in which it was ready to compute and had no processor.
 * The service process or a library thread that progresses the call may have used that processor.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "timings.h"
#include "classes.h"
#include "groups.h"
#include "trials.h"

#define TIMINGS_MAX 64

struct timing {
    MPI_Request request;
    struct group *group;
    struct class *class;
    enum path path;
    struct trial_turn trial_turn;
    double posting;
    pthread_t poster;
    double delay; /* run delay of the poster since its start, at the last check */
    double lost;  /* run delay of the poster since the post */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timing timings[TIMINGS_MAX];
static atomic_int used; /* entries in use, from the start of the table */

/* With the lock held: the position of the request, or TIMINGS_MAX. */
static int find(MPI_Request request)
{
    for (int at = 0; at < atomic_load_explicit(&used, memory_order_relaxed); at++)
        if (timings[at].request == request)
            return at;
    return TIMINGS_MAX;
}

/* With the lock held. */
static void remove_entry(int at)
{
    int last = atomic_fetch_sub(&used, 1) - 1;
    timings[at] = timings[last];
}

/* Seconds in which this thread was ready to run and did not run; 0 if the kernel does not report them. */
static double run_delay(void)
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

static void add_lost_time(struct timing *timing)
{
    if (timing->trial_turn.number < 0 || !pthread_equal(timing->poster, pthread_self()))
        return;
    double now = run_delay();
    timing->lost += now - timing->delay;
    timing->delay = now;
}

void timings_add(MPI_Request request, const struct route *route, double seconds)
{
    if (request == MPI_REQUEST_NULL)
        return;
    pthread_mutex_lock(&lock);
    int at = find(request); /* finds an earlier request that completed unseen */
    if (at == TIMINGS_MAX && atomic_load(&used) < TIMINGS_MAX)
        at = atomic_fetch_add(&used, 1);
    if (at < TIMINGS_MAX)
        timings[at] = (struct timing){request,
                                      route->group,
                                      route->class,
                                      route->path,
                                      route->trial_turn,
                                      seconds,
                                      pthread_self(),
                                      route->trial_turn.number < 0 ? 0 : run_delay(),
                                      0};
    pthread_mutex_unlock(&lock);
}

bool timings_any(void)
{
    return atomic_load_explicit(&used, memory_order_relaxed) > 0;
}

bool timings_contain(int count, const MPI_Request *requests)
{
    bool found = false;
    if (!timings_any())
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        int at = requests[i] == MPI_REQUEST_NULL ? TIMINGS_MAX : find(requests[i]);
        if (at == TIMINGS_MAX)
            continue;
        found = true;
        add_lost_time(&timings[at]);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void timings_complete(MPI_Request request, double seconds)
{
    pthread_mutex_lock(&lock);
    int at = find(request);
    if (at < TIMINGS_MAX) {
        struct timing timing = timings[at];
        remove_entry(at);
        class_record_time(timing.class, timing.path, &timing.trial_turn, timing.posting + seconds, timing.lost);
    }
    pthread_mutex_unlock(&lock);
}

void timings_remove(MPI_Request request)
{
    if (!timings_any())
        return;
    pthread_mutex_lock(&lock);
    int at = find(request);
    if (at < TIMINGS_MAX)
        remove_entry(at);
    pthread_mutex_unlock(&lock);
}

void timings_remove_group(const struct group *group)
{
    pthread_mutex_lock(&lock);
    for (int at = atomic_load(&used) - 1; at >= 0; at--)
        if (timings[at].group == group)
            remove_entry(at);
    pthread_mutex_unlock(&lock);
}
