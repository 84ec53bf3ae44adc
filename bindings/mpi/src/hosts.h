/*
 * hosts.h: the hosts of the ranks.
 */
#ifndef OUTBOARD_MPI_HOSTS_H
#define OUTBOARD_MPI_HOSTS_H

#include "mpi.h"
#include <stdbool.h>

/* The distribution of a communicator's ranks over hosts; equal on all ranks of the communicator. */
struct placement {
    int hosts;
    int ranks_per_host; /* on the host with the most */
};

/* Finds the host of every rank. Collective over MPI_COMM_WORLD, in MPI_Init. */
void hosts_find(void);
void hosts_free(void);
/* Whether the rank of MPI_COMM_WORLD is the first on its host. */
bool hosts_first(int rank);
/* The name of the rank's host; only on rank 0. */
const char *hosts_name(int rank);
/* Computes the placement of a communicator. Local. False if a rank of the communicator is of another world. */
bool placement_of(MPI_Comm comm, int ranks, struct placement *placement);
static inline bool same_placement(const struct placement *one, const struct placement *other)
{
    return one->hosts == other->hosts && one->ranks_per_host == other->ranks_per_host;
}

#endif
