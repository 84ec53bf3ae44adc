/*
 * tree.c: what the ranks of MPI_COMM_WORLD tell one another in MPI_Init.
 *
 * Over TCP, Open MPI connects two ranks when the first message goes between them and looks at all its connections
 * whenever it waits: each further one makes small native calls 2 to 3 % slower. So these messages go along a binomial
 * tree, of 2 connections a rank in the mean, which small allreduces and barriers of the program use as well.
 *
 * Messages between two ranks stay in order, and the program sends none before MPI_Init returns: a message of its own
 * with this tag is never taken for one of these. Errors abort, as is usual on MPI_COMM_WORLD before MPI_Init returns.
 */
#include "shim.h"

#define TAG 0x6f62

/* Of rank 0 at the root: its children are so far away as are powers of two below this, which is also how many ranks its
 * own subtree can have, itself first. */
static int reach(int rank, int ranks)
{
    int at = 1;
    while (at < ranks && (rank & at) == 0)
        at *= 2;
    return at;
}

static void find_place(int *rank, int *ranks, int *far)
{
    PMPI_Comm_rank(MPI_COMM_WORLD, rank);
    PMPI_Comm_size(MPI_COMM_WORLD, ranks);
    *far = reach(*rank, *ranks);
}

static void send(const void *bytes, size_t count, int to)
{
    PMPI_Send(bytes, (int)count, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
}

static void receive(void *bytes, size_t count, int from)
{
    PMPI_Recv(bytes, (int)count, MPI_BYTE, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int least(int one, int other)
{
    return one < other ? one : other;
}

void tree_gather(void *all, size_t each)
{
    int rank, ranks, far;
    find_place(&rank, &ranks, &far);
    unsigned char *mine = (unsigned char *)all + (size_t)rank * each;
    for (int away = 1; away < far && rank + away < ranks; away *= 2)
        receive(mine + (size_t)away * each, (size_t)least(away, ranks - rank - away) * each, rank + away);
    if (rank != 0)
        send(mine, (size_t)least(far, ranks - rank) * each, rank - far);
}

int tree_least(int mine)
{
    int rank, ranks, far, next;
    find_place(&rank, &ranks, &far);
    for (int away = 1; away < far && rank + away < ranks; away *= 2) {
        receive(&next, sizeof next, rank + away);
        mine = least(mine, next);
    }
    if (rank != 0)
        send(&mine, sizeof mine, rank - far);
    tree_broadcast(&mine, sizeof mine);
    return mine;
}

void tree_broadcast(void *bytes, size_t count)
{
    int rank, ranks, far;
    find_place(&rank, &ranks, &far);
    if (rank != 0)
        receive(bytes, count, rank - far);
    for (int away = far / 2; away > 0; away /= 2)
        if (rank + away < ranks)
            send(bytes, count, rank + away);
}

void tree_lift(void *bytes, size_t count, int from)
{
    int rank, ranks, far;
    find_place(&rank, &ranks, &far);
    if (from != 0 && rank == from)
        send(bytes, count, 0);
    if (from != 0 && rank == 0)
        receive(bytes, count, from);
}
