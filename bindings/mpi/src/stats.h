/*
 * stats.h: counts and times of calls by class and placement.
 */
#ifndef OUTBOARD_MPI_STATS_H
#define OUTBOARD_MPI_STATS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "hosts.h"
#include "trials.h"

struct class_stats {
    unsigned key;
    struct placement placement;
    atomic_ullong calls[PATHS];
    atomic_ullong nanoseconds[PATHS]; /* inside MPI */
    enum path path;                   /* the latest choice */
    enum reason reason;
    struct estimate estimate;         /* as last agreed */
    bool tried;                       /* a trial has begun in this run */
    struct class_stats *next;
};

/* Returns the statistics of a class, which are added if they are missing; NULL without memory. */
struct class_stats *stats_of(unsigned key, const struct placement *placement);
void stats_count_call(struct class_stats *stats, enum path path);
void stats_add_time(struct class_stats *stats, enum path path, double seconds);
void stats_set_choice(struct class_stats *stats, const struct trial *trial);
/* The first in the list of all statistics, in the order in which they were added. */
const struct class_stats *stats_first(void);
/* Seconds that offloading has saved according to trials; negative if it has cost more. */
double stats_saved_seconds(void);
void stats_free(void);

#endif
