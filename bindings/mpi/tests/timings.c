/*
 * timings.c: processor time that the caller of a nonblocking call loses counts only in a trial.
 *
 * Two threads share one processor. One computes between post and wait until the other has had the processor, too.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../src/classes.h"
#include "../src/timings.h"

enum { SHARES = 3 };

static atomic_uint rival_turns;
static atomic_bool over;
static double reported_seconds, lost_by_trial;

void class_record_time(struct class *class, enum path path, const struct trial_turn *turn, double seconds, double lost)
{
    (void)class, (void)path, (void)turn;
    reported_seconds = seconds;
    lost_by_trial = lost;
}

static void *rival(void *unused)
{
    while (!atomic_load(&over))
        atomic_fetch_add(&rival_turns, 1);
    return unused;
}

/* Computes until the other thread has had the processor SHARES times. */
static void compute(void)
{
    for (int share = 0; share < SHARES; share++)
        for (unsigned seen = atomic_load(&rival_turns); atomic_load(&rival_turns) == seen;)
            continue;
}

static void *check_contained(void *request)
{
    assert(timings_contain(1, request));
    return NULL;
}

static double lost_in(int turn, bool elsewhere)
{
    MPI_Request request = (MPI_Request)(uintptr_t)&reported_seconds; /* any value but MPI_REQUEST_NULL */
    const struct route route = {.trial_turn = {.number = turn}};
    pthread_t other;
    timings_add(request, &route, 0.25);
    compute();
    if (elsewhere) {
        assert(pthread_create(&other, NULL, check_contained, &request) == 0);
        pthread_join(other, NULL);
    } else {
        check_contained(&request);
    }
    timings_complete(request, 0.5);
    assert(reported_seconds == 0.75 && !timings_any());
    return lost_by_trial;
}

int main(void)
{
    cpu_set_t one;
    pthread_t thread;
    bool kernel_reports_delay = access("/proc/thread-self/schedstat", R_OK) == 0;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert(sched_setaffinity(0, sizeof one, &one) == 0);
    assert(pthread_create(&thread, NULL, rival, NULL) == 0);
    assert((lost_in(0, false) > 0) == kernel_reports_delay);
    assert(lost_in(0, true) == 0);
    assert(lost_in(-1, false) == 0);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    return 0;
}
