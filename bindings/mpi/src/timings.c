/*
 * timings.c: nonblocking calls whose time counts, natively posted ones and offloaded ones alike, until they complete.
 *
 * What counts of such a call is the time to post it and the time of the MPI_Wait or MPI_Test in which it completed;
 * what tests before took is not counted. A small table: a call that finds it full is not timed, nor is one that
 * completes where the shim does not look. Nothing is paid while the table is empty.
 */
#include <pthread.h>

#include "shim.h"

#define TIMED_MOST 64

struct timing {
    MPI_Request request;
    struct group *group;
    struct class *class;
    enum way way;
    struct turn_of of;
    double posting;
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

void timings_enter(MPI_Request request, const struct turn *turn, double seconds)
{
    if (request == MPI_REQUEST_NULL)
        return;
    pthread_mutex_lock(&lock);
    int at = find(request); /* one that completed unseen */
    if (at == TIMED_MOST && atomic_load(&used) < TIMED_MOST)
        at = atomic_fetch_add(&used, 1);
    if (at < TIMED_MOST)
        timings[at] = (struct timing){request, turn->group, turn->class, turn->way, turn->of, seconds};
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
    for (int i = 0; i < count && !known; i++)
        known = requests[i] != MPI_REQUEST_NULL && find(requests[i]) < TIMED_MOST;
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
        choice_timed(timing.class, timing.way, &timing.of, timing.posting + seconds);
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
