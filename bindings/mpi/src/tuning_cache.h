/*
 * tuning_cache.h: results of earlier runs on this cluster.
 */
#ifndef OUTBOARD_MPI_TUNING_CACHE_H
#define OUTBOARD_MPI_TUNING_CACHE_H

#include <stdint.h>

#include "hosts.h"
#include "trials.h"

struct tuning_entry {
    unsigned key;
    struct placement placement;
    struct estimate estimate;
    uint64_t calls;
};

/* Collective over MPI_COMM_WORLD: rank 0 reads the file for all. */
void tuning_cache_read(void);
/* NULL if there is no result. */
const struct tuning_entry *tuning_cache_find(unsigned key, const struct placement *placement);
/* On rank 0: adds the results of this run to the file, if this run tried anything. */
void tuning_cache_write(void);
void tuning_cache_free(void);

#endif
