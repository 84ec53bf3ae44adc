/*
 * hosts.c: the host of each rank.
 *
 * The hosts are gathered once, in MPI_Init. From then on every rank can compute the placement of any communicator's
 * ranks alone, and all members find the same placement. Ranks with the same MPI_Get_processor_name are on one host, as
 * for Open MPI. The lowest rank of MPI_COMM_WORLD on a host identifies the host.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosts.h"
#include "scratch.h"
#include "tree.h"

static int *host_of; /* by rank of MPI_COMM_WORLD */
static int world_ranks;
/* The names of all ranks' hosts; only on rank 0. */
static char (*names)[MPI_MAX_PROCESSOR_NAME];

static void out_of_memory(int ranks)
{
    fprintf(stderr, "outboard: out of memory while the hosts of %d ranks were counted\n", ranks);
    mpi.Abort(MPI_COMM_WORLD, 1);
}

static int by_name_and_rank(const void *a, const void *b)
{
    int one = *(const int *)a, other = *(const int *)b, order = strcmp(names[one], names[other]);
    return order != 0 ? order : one - other;
}

/* Numbers the hosts; only on rank 0, which knows all names. */
static void number_hosts(void)
{
    int *sorted = scratch_allocate((size_t)world_ranks * sizeof *sorted);
    if (sorted == NULL)
        out_of_memory(world_ranks);
    for (int rank = 0; rank < world_ranks; rank++)
        sorted[rank] = rank;
    qsort(sorted, (size_t)world_ranks, sizeof *sorted, by_name_and_rank);
    for (int at = 0; at < world_ranks; at++) {
        bool same = at > 0 && strcmp(names[sorted[at]], names[sorted[at - 1]]) == 0;
        host_of[sorted[at]] = same ? host_of[sorted[at - 1]] : sorted[at];
    }
    scratch_free(sorted);
}

void hosts_find(void)
{
    int rank, length;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    mpi.Comm_size(MPI_COMM_WORLD, &world_ranks);
    host_of = scratch_allocate((size_t)world_ranks * sizeof *host_of);
    names = scratch_allocate((size_t)world_ranks * sizeof *names);
    if (host_of == NULL || names == NULL)
        out_of_memory(world_ranks);
    mpi.Get_processor_name(names[rank], &length);
    tree_gather(names, sizeof *names);
    if (rank == 0) {
        number_hosts();
    } else {
        scratch_free(names);
        names = NULL;
    }
    tree_broadcast(host_of, (size_t)world_ranks * sizeof *host_of);
}

void hosts_free(void)
{
    scratch_free(names);
    scratch_free(host_of);
    names = NULL;
    host_of = NULL;
}

const char *hosts_name(int rank)
{
    return names[rank];
}

bool hosts_first(int rank)
{
    return host_of[rank] == rank;
}

/* Writes one rank of MPI_COMM_WORLD per rank of the communicator to `to`. False if one is of another world. */
static bool world_ranks_of(MPI_Comm comm, int ranks, int *from, int *to)
{
    MPI_Group members, world;
    bool all = true;
    for (int rank = 0; rank < ranks; rank++)
        from[rank] = rank;
    mpi.Comm_group(comm, &members);
    mpi.Comm_group(MPI_COMM_WORLD, &world);
    all = mpi.Group_translate_ranks(members, ranks, from, world, to) == MPI_SUCCESS;
    mpi.Group_free(&members);
    mpi.Group_free(&world);
    for (int rank = 0; all && rank < ranks; rank++)
        all = to[rank] != MPI_UNDEFINED;
    return all;
}

bool placement_of(MPI_Comm comm, int ranks, struct placement *placement)
{
    int *from = malloc(2 * (size_t)ranks * sizeof *from), *ranks_on = calloc((size_t)world_ranks, sizeof *ranks_on);
    if (from == NULL || ranks_on == NULL)
        out_of_memory(ranks);
    int *to = from + ranks;
    bool all = world_ranks_of(comm, ranks, from, to);
    *placement = (struct placement){0, 0};
    for (int rank = 0; all && rank < ranks; rank++) {
        int on = ++ranks_on[host_of[to[rank]]];
        placement->hosts += on == 1;
        placement->ranks_per_host = on > placement->ranks_per_host ? on : placement->ranks_per_host;
    }
    free(ranks_on);
    free(from);
    return all;
}
