/*
 * neighbors.c: neighbourhood collectives by the service process, as an alltoallv in which most blocks are empty.
 *
 * A rank may occur several times among the neighbours of a graph. Its blocks then travel as one, in the order in which
 * both ranks list them (MPI 4.1, 8.6), so they are packed side by side. In a Cartesian grid with a periodic dimension
 * of one or two ranks the order depends on the direction: such grids pass through, on all ranks.
 *
 * Only neighbours know the blocks, so all calls on a communicator are offloaded or none.
 */
#include <stdlib.h>
#include <string.h>

#include "neighbors.h"
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"

/* Most dimensions of a grid whose calls are offloaded. */
#define DIMENSIONS_MAX 16

/* Neighbours of one direction: `rank[i]` is MPI_PROC_NULL for a neighbour that a grid lacks. `order` lists the places
 * in the order of their ranks. */
struct neighbor_list {
    int count;
    int *rank;
    int *order;
};

struct neighbors {
    bool offloadable;
    struct neighbor_list from, to;
};

bool is_neighborhood(const struct call *call)
{
    const struct method *method = method_of(call->collective);
    return method == &neighbor_allgather_method || method == &neighbor_alltoall_method;
}

void neighbors_free(struct neighbors *neighbors)
{
    if (neighbors == NULL)
        return;
    free(neighbors->from.rank);
    free(neighbors->to.rank);
    free(neighbors);
}

static bool allocate(struct neighbor_list *list, int count)
{
    list->count = count;
    list->rank = malloc((2 * (size_t)count + 1) * sizeof *list->rank);
    list->order = list->rank == NULL ? NULL : list->rank + count;
    return list->rank != NULL;
}

/* An insertion sort: stable, and lists of neighbours are short or in order. */
static void sort(struct neighbor_list *list)
{
    for (int i = 0; i < list->count; i++) {
        int at = i;
        for (; at > 0 && list->rank[list->order[at - 1]] > list->rank[i]; at--)
            list->order[at] = list->order[at - 1];
        list->order[at] = i;
    }
}

/* The neighbours along each dimension: the lower one, then the upper one. */
static bool find_in_grid(MPI_Comm comm, struct neighbors *neighbors)
{
    int dimensions, sizes[DIMENSIONS_MAX], periods[DIMENSIONS_MAX], coordinates[DIMENSIONS_MAX];
    if (mpi.Cartdim_get(comm, &dimensions) != MPI_SUCCESS || dimensions > DIMENSIONS_MAX ||
        mpi.Cart_get(comm, dimensions, sizes, periods, coordinates) != MPI_SUCCESS ||
        !allocate(&neighbors->from, 2 * dimensions) || !allocate(&neighbors->to, 2 * dimensions))
        return false;
    for (int at = 0; at < dimensions; at++) {
        int *pair = neighbors->from.rank + 2 * at;
        if ((periods[at] && sizes[at] <= 2) || mpi.Cart_shift(comm, at, 1, &pair[0], &pair[1]) != MPI_SUCCESS)
            return false;
    }
    memcpy(neighbors->to.rank, neighbors->from.rank, (size_t)neighbors->to.count * sizeof *neighbors->to.rank);
    return true;
}

static bool find_in_graph(MPI_Comm comm, int rank, struct neighbors *neighbors)
{
    int count;
    if (mpi.Graph_neighbors_count(comm, rank, &count) != MPI_SUCCESS || !allocate(&neighbors->from, count) ||
        !allocate(&neighbors->to, count) ||
        mpi.Graph_neighbors(comm, rank, count, neighbors->from.rank) != MPI_SUCCESS)
        return false;
    memcpy(neighbors->to.rank, neighbors->from.rank, (size_t)count * sizeof *neighbors->to.rank);
    return true;
}

static bool find_in_distributed_graph(MPI_Comm comm, struct neighbors *neighbors)
{
    int from, to, weighted;
    if (mpi.Dist_graph_neighbors_count(comm, &from, &to, &weighted) != MPI_SUCCESS ||
        !allocate(&neighbors->from, from) || !allocate(&neighbors->to, to))
        return false;
    int *weights = malloc(((size_t)from + (size_t)to + 1) * sizeof *weights);
    bool found = weights != NULL && mpi.Dist_graph_neighbors(comm, from, neighbors->from.rank, weights, to,
                                                             neighbors->to.rank, weights + from) == MPI_SUCCESS;
    free(weights);
    return found;
}

static bool find(MPI_Comm comm, int rank, struct neighbors *neighbors)
{
    int kind;
    if (mpi.Topo_test(comm, &kind) != MPI_SUCCESS)
        return false;
    bool found = kind == MPI_CART         ? find_in_grid(comm, neighbors)
                 : kind == MPI_GRAPH      ? find_in_graph(comm, rank, neighbors)
                 : kind == MPI_DIST_GRAPH ? find_in_distributed_graph(comm, neighbors)
                                          : false;
    if (found) {
        sort(&neighbors->from);
        sort(&neighbors->to);
    }
    return found;
}

static const struct neighbors *neighbors_of(const struct group *group)
{
    struct group *owner = (struct group *)group; /* a cache, filled by the thread that calls on the communicator */
    if (owner->neighbors == NULL) {
        owner->neighbors = calloc(1, sizeof *owner->neighbors);
        if (owner->neighbors == NULL)
            group_out_of_memory(group->ranks);
        owner->neighbors->offloadable = find(group->comm, group->rank, owner->neighbors);
    }
    return owner->neighbors;
}

int neighbors_count(const struct group *group, bool sends)
{
    const struct neighbors *neighbors = neighbors_of(group);
    return sends ? neighbors->to.count : neighbors->from.count;
}

/* The shim refuses what MPI refuses; arguments differ between ranks only if the program is wrong. */
static bool buffer_invalid(const struct user_buffer *user_buffer, int count)
{
    bool even = user_buffer->counts == NULL;
    return (even || count > 0) && user_buffer_invalid(user_buffer, even ? 0 : count);
}

static bool measure(const struct call *call, const struct group *group, uint64_t *bytes)
{
    const struct neighbors *neighbors = neighbors_of(group);
    *bytes = BYTES_UNKNOWN;
    return neighbors->offloadable && !buffer_invalid(&call->send, neighbors->to.count) &&
           !buffer_invalid(&call->receive, neighbors->from.count);
}

static bool allows(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_alltoallv(group->members) == 1;
}

/* Lists of one buffer by neighbour, in the order of their ranks. */
struct sorted {
    MPI_Count *counts;
    MPI_Aint *displacements;
    MPI_Datatype *types;
};

static bool occurs_twice(const struct neighbor_list *list)
{
    for (int i = 1; i < list->count; i++)
        if (list->rank[list->order[i]] == list->rank[list->order[i - 1]] &&
            list->rank[list->order[i]] != MPI_PROC_NULL)
            return true;
    return false;
}

/* Sets `buffer` to the blocks of all neighbours. An even buffer has one block for all (`gathers`) or one for each. */
static void set_blocks(struct buffer *buffer, const struct user_buffer *from, const struct neighbor_list *list,
                       bool gathers, struct sorted into)
{
    for (int i = 0; i < list->count; i++) {
        int at = list->order[i];
        bool even = from->counts == NULL, none = list->rank[at] == MPI_PROC_NULL;
        into.counts[i] = none ? 0 : even ? from->count : user_buffer_count(from, at);
        into.displacements[i] = !even     ? (MPI_Aint)user_buffer_displacement(from, at)
                                : gathers ? 0
                                          : (MPI_Aint)(at * from->count);
        into.types[i] = user_buffer_type(from, at);
    }
    buffer->user = (struct user_buffer){.address = from->address,
                                        .counts = into.counts,
                                        .displacements = into.displacements,
                                        .type = from->type,
                                        .wide_counts = true,
                                        .wide_displacements = true,
                                        .types = from->types == NULL ? NULL : into.types};
    buffer->blocks = list->count;
    buffer->must_pack = occurs_twice(list);
}

static int set_buffers_of(struct posting *posting, bool gathers)
{
    const struct call *call = posting->call;
    const struct neighbors *neighbors = neighbors_of(posting->group);
    size_t to = (size_t)neighbors->to.count, all = to + (size_t)neighbors->from.count;
    MPI_Count *counts = posting->buffers.sorted =
        malloc((all + 1) * (sizeof(MPI_Count) + sizeof(MPI_Aint) + sizeof(MPI_Datatype)));
    if (counts == NULL)
        return MPI_ERR_NO_MEM;
    MPI_Aint *displacements = (MPI_Aint *)(counts + all);
    MPI_Datatype *types = (MPI_Datatype *)(displacements + all);
    set_blocks(&posting->buffers.send, &call->send, &neighbors->to, gathers,
               (struct sorted){counts, displacements, types});
    set_blocks(&posting->buffers.receive, &call->receive, &neighbors->from, false,
               (struct sorted){counts + to, displacements + to, types + to});
    return MPI_SUCCESS;
}

static int set_buffers_gather(struct posting *posting)
{
    return set_buffers_of(posting, true);
}

static int set_buffers_exchange(struct posting *posting)
{
    return set_buffers_of(posting, false);
}

/* Sums the blocks of each rank, which lie side by side if there are several. */
static void by_rank(const struct buffer *buffer, const struct neighbor_list *list, uint64_t *bytes, uint64_t *offsets)
{
    for (int i = 0; i < list->count; i++) {
        int rank = list->rank[list->order[i]];
        if (rank == MPI_PROC_NULL || buffer->bytes[i] == 0)
            continue;
        if (bytes[rank] == 0)
            offsets[rank] = buffer->offsets[i];
        bytes[rank] += buffer->bytes[i];
    }
}

static int post(struct posting *posting)
{
    const struct neighbors *neighbors = neighbors_of(posting->group);
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    size_t ranks = (size_t)posting->group->ranks, own = (size_t)posting->group->rank;
    uint64_t *lists = calloc(4 * ranks, sizeof *lists);
    if (lists == NULL)
        return MPI_ERR_NO_MEM;
    by_rank(send, &neighbors->to, lists, lists + ranks);
    by_rank(receive, &neighbors->from, lists + 2 * ranks, lists + 3 * ranks);
    int code = MPI_ERR_TRUNCATE; /* this rank's block for itself has two sizes */
    if (lists[own] == lists[2 * ranks + own])
        code = outcome_code(outboard.ialltoallv(posting->group->members, buffer_memory(send), lists, lists + ranks,
                                                buffer_memory(receive), lists + 2 * ranks, lists + 3 * ranks,
                                                &posting->posted));
    free(lists);
    return code;
}

const struct method neighbor_allgather_method = {measure, allows, false, set_buffers_gather, post};
const struct method neighbor_alltoall_method = {measure, allows, false, set_buffers_exchange, post};
