/*
 * stats.c: counts and times of native and offloaded calls, for each class of calls and placement of their
 * communicators.
 *
 * The statistics are local to this rank. Entries are added and stay until MPI_Finalize. The report and the file of
 * tuning_cache.c are made of the entries.
 */
#include <pthread.h>
#include <stdlib.h>

#include "stats.h"
#include "hosts.h"
#include "trials.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct class_stats *all;

struct class_stats *stats_of(unsigned key, const struct placement *placement)
{
    pthread_mutex_lock(&lock);
    struct class_stats **at = &all;
    while (*at != NULL && ((*at)->key != key || !same_placement(&(*at)->placement, placement)))
        at = &(*at)->next;
    if (*at == NULL && (*at = calloc(1, sizeof **at)) != NULL) {
        (*at)->key = key;
        (*at)->placement = *placement;
    }
    struct class_stats *stats = *at;
    pthread_mutex_unlock(&lock);
    return stats;
}

void stats_count_call(struct class_stats *stats, enum path path)
{
    atomic_fetch_add_explicit(&stats->calls[path], 1, memory_order_relaxed);
}

void stats_add_time(struct class_stats *stats, enum path path, double seconds)
{
    atomic_fetch_add_explicit(&stats->nanoseconds[path], (unsigned long long)(seconds * 1e9), memory_order_relaxed);
}

void stats_set_choice(struct class_stats *stats, const struct trial *trial)
{
    pthread_mutex_lock(&lock);
    stats->path = trial->path;
    stats->reason = trial->reason;
    if (trial->reason == BY_TRIAL || !stats->tried)
        stats->estimate = trial->estimate; /* a communicator without a verdict does not replace the result of another */
    stats->tried = stats->tried || trial->serial > 0;
    pthread_mutex_unlock(&lock);
}

const struct class_stats *stats_first(void)
{
    return all;
}

double stats_saved_seconds(void)
{
    double saved = 0;
    for (const struct class_stats *stats = all; stats != NULL; stats = stats->next)
        saved += (double)atomic_load(&stats->calls[OFFLOADED]) *
                 (stats->estimate.seconds[NATIVE] - stats->estimate.seconds[OFFLOADED]);
    return saved;
}

void stats_free(void)
{
    while (all != NULL) {
        struct class_stats *stats = all;
        all = stats->next;
        free(stats);
    }
}
