/*
 * hosts.c: on which host each rank is.
 *
 * Asked once, in MPI_Init. From then on every rank can tell alone how the ranks of any communicator lie, and all its
 * members find the same. A host is known by the lowest rank of MPI_COMM_WORLD on it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "shim.h"

static int *host_of; /* by rank of MPI_COMM_WORLD */
static int world_ranks;

bool hosts_find(void)
{
    MPI_Comm here = MPI_COMM_NULL;
    int rank, leader;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    leader = rank;
    host_of = malloc((size_t)world_ranks * sizeof *host_of);
    int room = host_of != NULL, all = 0;
    PMPI_Allreduce(&room, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all)
        return false;
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here);
    PMPI_Bcast(&leader, 1, MPI_INT, 0, here);
    PMPI_Comm_free(&here);
    PMPI_Allgather(&leader, 1, MPI_INT, host_of, 1, MPI_INT, MPI_COMM_WORLD);
    return true;
}

void hosts_forget(void)
{
    free(host_of);
    host_of = NULL;
}

bool hosts_first(int rank)
{
    return host_of[rank] == rank;
}

/* Into `to`, as many as the communicator has ranks. False where one is of another world. */
static bool world_ranks_of(MPI_Comm comm, int ranks, int *from, int *to)
{
    MPI_Group members, world;
    bool all = true;
    for (int rank = 0; rank < ranks; rank++)
        from[rank] = rank;
    PMPI_Comm_group(comm, &members);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    all = PMPI_Group_translate_ranks(members, ranks, from, world, to) == MPI_SUCCESS;
    PMPI_Group_free(&members);
    PMPI_Group_free(&world);
    for (int rank = 0; all && rank < ranks; rank++)
        all = to[rank] != MPI_UNDEFINED;
    return all;
}

bool place_of(MPI_Comm comm, int ranks, struct place *place)
{
    int *from = malloc(2 * (size_t)ranks * sizeof *from), *there = calloc((size_t)world_ranks, sizeof *there);
    if (from == NULL || there == NULL) {
        fprintf(stderr, "outboard: out of memory while the hosts of %d ranks were counted\n", ranks);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    int *to = from + ranks;
    bool all = world_ranks_of(comm, ranks, from, to);
    *place = (struct place){0, 0};
    for (int rank = 0; all && rank < ranks; rank++) {
        int on = ++there[host_of[to[rank]]];
        place->hosts += on == 1;
        place->ranks_per_host = on > place->ranks_per_host ? on : place->ranks_per_host;
    }
    free(there);
    free(from);
    return all;
}
