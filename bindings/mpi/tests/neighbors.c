/*
 * neighbors.c: neighbourhood collectives on graphs in which neighbours occur several times, and on grids, and
 * MPI_Alltoallw: blocking, nonblocking, persistent, and with large counts. Every element is checked. Prints TAP on rank
 * 0.
 *
 * Element `i` of block `k` that rank `r` sends is r * 1000000 + k * 1000 + i. The k-th block from a rank arrives in the
 * k-th place of that rank among the sources.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define INIT(Name) MPI_##Name##_init
#else
#include <mpi-ext.h>
#define INIT(Name) MPIX_##Name##_init
#endif

enum form { BLOCKING, NONBLOCKING, PERSISTENT, LARGE, FORMS };
enum { MOST = 32, LONGEST = 40 };

static int rank, ranks, number, bad, failures;
/* The topology: sources and destinations of this rank. */
static int from[MOST], to[MOST], from_count, to_count;

static void report_test(const char *name)
{
    int all;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s %d - %s\n", all == 0 ? "ok" : "not ok", ++number, name);
    bad += all;
    failures = 0;
}

static int value(int source, int block, int element)
{
    return source * 1000000 + block * 1000 + element;
}

/* Elements in the block from rank `source` that it sends as its block `block`. */
static int length_of(int source, int block)
{
    return 1 + (source * 7 + block * 5) % (LONGEST - 1);
}

#define DO(Name, lower, comm, ...)                                                                                     \
    do {                                                                                                               \
        MPI_Request request = MPI_REQUEST_NULL;                                                                        \
        if (form == NONBLOCKING) {                                                                                     \
            MPI_I##lower(__VA_ARGS__, comm, &request);                                                                 \
            MPI_Wait(&request, MPI_STATUS_IGNORE);                                                                     \
        } else if (form == PERSISTENT) {                                                                               \
            INIT(Name)(__VA_ARGS__, comm, MPI_INFO_NULL, &request);                                                    \
            for (int i = 0; i < 2; i++) {                                                                              \
                MPI_Start(&request);                                                                                   \
                MPI_Wait(&request, MPI_STATUS_IGNORE);                                                                 \
            }                                                                                                          \
            MPI_Request_free(&request);                                                                                \
        } else {                                                                                                       \
            MPI_##Name(__VA_ARGS__, comm);                                                                             \
        }                                                                                                              \
    } while (0)

/* How often the rank occurs in the list before this place. */
static int earlier(const int *list, int place)
{
    int count = 0;
    for (int i = 0; i < place; i++)
        count += list[i] == list[place];
    return count;
}

/* The destinations of every rank, for the graph that all ranks compute alike. */
static int destinations_of(int of, int *list)
{
    unsigned seed = 12345u + (unsigned)of;
    int count = (int)(seed % 5) + 2;
    for (int i = 0; i < count; i++) {
        seed = seed * 1103515245u + 12345u;
        list[i] = (int)(seed >> 16) % ranks;
    }
    return count;
}

/* The block of the source that arrives in this place: the same occurrence of this rank among its destinations. */
static int block_for(int place, const int *its_destinations)
{
    int occurrence = earlier(from, place);
    for (int block = 0;; block++)
        if (its_destinations[block] == rank && occurrence-- == 0)
            return block;
}

static MPI_Comm make_graph(void)
{
    MPI_Comm graph;
    int list[MOST];
    to_count = destinations_of(rank, to);
    from_count = 0;
    for (int source = 0; source < ranks; source++) {
        int count = destinations_of(source, list);
        for (int i = 0; i < count; i++)
            if (list[i] == rank)
                from[from_count++] = source;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, from_count, from, MPI_UNWEIGHTED, to_count, to, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &graph);
    return graph;
}

static void check_blocks(const int *received, const int *starts, const int *lengths, int stride)
{
    int list[MOST];
    for (int place = 0; place < from_count; place++) {
        destinations_of(from[place], list);
        int block = block_for(place, list);
        for (int i = 0; i < lengths[place]; i++)
            failures += received[starts[place] + i * stride] != value(from[place], block, i);
    }
}

static void exchange_uneven(MPI_Comm graph, enum form form)
{
    static int sent[MOST * LONGEST], received[MOST * LONGEST];
    int lengths[MOST], starts[MOST], arriving[MOST], places[MOST], list[MOST];
    for (int block = 0, at = 0; block < to_count; at += lengths[block++]) {
        lengths[block] = length_of(rank, block);
        starts[block] = at;
        for (int i = 0; i < lengths[block]; i++)
            sent[at + i] = value(rank, block, i);
    }
    for (int place = 0, at = 0; place < from_count; at += arriving[place++] + 3) {
        destinations_of(from[place], list);
        arriving[place] = length_of(from[place], block_for(place, list));
        places[place] = at;
    }
    memset(received, 0xee, sizeof received);
#if MPI_VERSION >= 4
    if (form == LARGE) {
        MPI_Count large[2][MOST];
        MPI_Aint far[2][MOST];
        for (int i = 0; i < to_count; i++)
            large[0][i] = lengths[i], far[0][i] = starts[i];
        for (int i = 0; i < from_count; i++)
            large[1][i] = arriving[i], far[1][i] = places[i];
        MPI_Neighbor_alltoallv_c(sent, large[0], far[0], MPI_INT, received, large[1], far[1], MPI_INT, graph);
    } else
#endif
        DO(Neighbor_alltoallv, neighbor_alltoallv, graph, sent, lengths, starts, MPI_INT, received, arriving, places,
           MPI_INT);
    check_blocks(received, places, arriving, 1);
}

/* Blocks of integers with gaps as wide, by datatypes that are freed while the call is in flight. */
static void exchange_typed(MPI_Comm graph, enum form form)
{
    static int sent[MOST * LONGEST * 2], received[MOST * LONGEST * 2];
    int ones[MOST], arriving[MOST], places[MOST], list[MOST];
    MPI_Aint starts[MOST], bytes[MOST];
    MPI_Datatype leaving[MOST], landing[MOST];
    for (int block = 0, at = 0; block < to_count; at += 2 * length_of(rank, block++)) {
        int length = length_of(rank, block);
        ones[block] = 1;
        starts[block] = at * (MPI_Aint)sizeof(int);
        MPI_Type_vector(length, 1, 2, MPI_INT, &leaving[block]);
        MPI_Type_commit(&leaving[block]);
        for (int i = 0; i < length; i++)
            sent[at + 2 * i] = value(rank, block, i);
    }
    int single[MOST];
    for (int place = 0, at = 0; place < from_count; at += 2 * arriving[place++]) {
        destinations_of(from[place], list);
        arriving[place] = length_of(from[place], block_for(place, list));
        places[place] = at;
        single[place] = 1;
        bytes[place] = at * (MPI_Aint)sizeof(int);
        MPI_Type_vector(arriving[place], 1, 2, MPI_INT, &landing[place]);
        MPI_Type_commit(&landing[place]);
    }
    memset(received, 0xee, sizeof received);
    DO(Neighbor_alltoallw, neighbor_alltoallw, graph, sent, ones, starts, leaving, received, single, bytes, landing);
    for (int i = 0; i < to_count; i++)
        MPI_Type_free(&leaving[i]);
    for (int i = 0; i < from_count; i++)
        MPI_Type_free(&landing[i]);
    check_blocks(received, places, arriving, 2);
    for (int i = 0; i < from_count; i++)
        for (int at = 0; at < arriving[i] - 1; at++)
            failures += received[places[i] + 2 * at + 1] != (int)0xeeeeeeee;
}

static void exchange_even(MPI_Comm graph, enum form form)
{
    int sent[MOST * 9], received[MOST * 9], places[MOST], lengths[MOST];
    for (int block = 0; block < to_count; block++)
        for (int i = 0; i < 9; i++)
            sent[9 * block + i] = value(rank, block, i);
    for (int place = 0; place < from_count; place++)
        places[place] = 9 * place, lengths[place] = 9;
    DO(Neighbor_alltoall, neighbor_alltoall, graph, sent, 9, MPI_INT, received, 9, MPI_INT);
    check_blocks(received, places, lengths, 1);
}

static void gather(MPI_Comm graph, enum form form)
{
    int sent[11], received[MOST * 13], places[MOST], lengths[MOST];
    for (int i = 0; i < 11; i++)
        sent[i] = value(rank, 0, i);
    DO(Neighbor_allgather, neighbor_allgather, graph, sent, 11, MPI_INT, received, 11, MPI_INT);
    for (int at = 0; at < 11 * from_count; at++)
        failures += received[at] != value(from[at / 11], 0, at % 11);
    for (int place = 0; place < from_count; place++)
        places[place] = 13 * (from_count - 1 - place), lengths[place] = 11;
    DO(Neighbor_allgatherv, neighbor_allgatherv, graph, sent, 11, MPI_INT, received, lengths, places, MPI_INT);
    for (int place = 0; place < from_count; place++)
        for (int i = 0; i < 11; i++)
            failures += received[places[place] + i] != value(from[place], 0, i);
}

/* Each rank sends its number in both directions. */
static void on_grid(int periodic, enum form form)
{
    MPI_Comm grid;
    int sizes[2] = {ranks, 1}, periods[2] = {periodic, 0}, sent[4], received[4], shifted[2];
    MPI_Cart_create(MPI_COMM_WORLD, 2, sizes, periods, 0, &grid);
    for (int i = 0; i < 4; i++)
        sent[i] = rank * 10 + i, received[i] = -1;
    DO(Neighbor_alltoall, neighbor_alltoall, grid, sent, 1, MPI_INT, received, 1, MPI_INT);
    MPI_Cart_shift(grid, 0, 1, &shifted[0], &shifted[1]);
    failures += received[0] != (shifted[0] == MPI_PROC_NULL ? -1 : shifted[0] * 10 + 1);
    failures += received[1] != (shifted[1] == MPI_PROC_NULL ? -1 : shifted[1] * 10);
    failures += received[2] != -1 || received[3] != -1;
    MPI_Comm_free(&grid);
}

/* Block i for rank j has i + j integers, with gaps on one side. */
static void alltoallw(enum form form)
{
    int *sent = malloc((size_t)ranks * 64 * sizeof(int)), *received = malloc((size_t)ranks * 64 * sizeof(int));
    int counts[MOST], arriving[MOST], starts[MOST], places[MOST];
    MPI_Datatype leaving[MOST], landing[MOST];
    for (int peer = 0; peer < ranks; peer++) {
        counts[peer] = rank + peer;
        starts[peer] = 64 * peer * (int)sizeof(int);
        leaving[peer] = MPI_INT;
        arriving[peer] = 1;
        places[peer] = (64 * (ranks - 1 - peer)) * (int)sizeof(int);
        MPI_Type_vector(rank + peer, 1, 3, MPI_INT, &landing[peer]);
        MPI_Type_commit(&landing[peer]);
        for (int i = 0; i < rank + peer; i++)
            sent[64 * peer + i] = value(rank, peer, i);
    }
    DO(Alltoallw, alltoallw, MPI_COMM_WORLD, sent, counts, starts, leaving, received, arriving, places, landing);
    for (int peer = 0; peer < ranks; peer++) {
        for (int i = 0; i < rank + peer; i++)
            failures += received[64 * (ranks - 1 - peer) + 3 * i] != value(peer, rank, i);
        MPI_Type_free(&landing[peer]);
    }
    free(sent);
    free(received);
}

int main(int argc, char **argv)
{
    static const char *const names[FORMS] = {"blocking", "nonblocking", "persistent", "large counts"};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm graph = make_graph();
    int *everybody = malloc((size_t)ranks * sizeof(int));
    MPI_Allgather(&rank, 1, MPI_INT, everybody, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        failures += everybody[i] != i;
    free(everybody);
    for (enum form form = BLOCKING; form < FORMS; form++) {
        exchange_uneven(graph, form);
        exchange_typed(graph, form);
        exchange_even(graph, form);
        gather(graph, form);
        on_grid(0, form);
        on_grid(1, form);
        alltoallw(form);
        report_test(names[form]);
    }
    MPI_Comm_free(&graph);
    MPI_Finalize();
    return bad != 0;
}
