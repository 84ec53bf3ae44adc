/*
 * tree.c: messages among the ranks of MPI_COMM_WORLD in MPI_Init.
 *
 * Over TCP, Open MPI connects two ranks at their first message and polls all its connections whenever it waits. Each
 * further connection makes small native calls 2 to 3 % slower. So these messages go along a binomial tree. If the
 * number of ranks is a power of two, the pairs of the tree also occur in a small allreduce; else some connections are
 * new.
 *
 * Messages between two ranks stay in order. The program sends only after MPI_Init has returned, so no message of the
 * program is mistaken for a message of the tree. Errors abort the program, as they do on MPI_COMM_WORLD by default.
 */
#include "mpi.h"

#include "tree.h"

#define TAG 0x6f62

/* The position of this rank in the tree. */
struct node {
    int rank;
    int ranks;
    int width; /* most ranks of its subtree; parent: rank - width; children: rank + 1, 2, 4 .. less than the width */
};

static struct node find_node(void)
{
    struct node node = {.width = 1};
    mpi.Comm_rank(MPI_COMM_WORLD, &node.rank);
    mpi.Comm_size(MPI_COMM_WORLD, &node.ranks);
    while (node.width < node.ranks && (node.rank & node.width) == 0)
        node.width *= 2;
    return node;
}

static void send(const void *bytes, size_t count, int to)
{
    mpi.Send(bytes, (int)count, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
}

static void receive(void *bytes, size_t count, int from)
{
    mpi.Recv(bytes, (int)count, MPI_BYTE, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int minimum(int one, int other)
{
    return one < other ? one : other;
}

void tree_gather(void *all, size_t each)
{
    struct node node = find_node();
    int after = node.ranks - node.rank; /* this rank and the ranks behind it */
    unsigned char *own = (unsigned char *)all + (size_t)node.rank * each;
    for (int distance = 1; distance < minimum(node.width, after); distance *= 2)
        receive(own + (size_t)distance * each, (size_t)minimum(distance, after - distance) * each,
                node.rank + distance);
    if (node.rank != 0)
        send(own, (size_t)minimum(node.width, after) * each, node.rank - node.width);
}

int tree_minimum(int own)
{
    struct node node = find_node();
    for (int distance = 1, received; distance < minimum(node.width, node.ranks - node.rank); distance *= 2) {
        receive(&received, sizeof received, node.rank + distance);
        own = minimum(own, received);
    }
    if (node.rank != 0)
        send(&own, sizeof own, node.rank - node.width);
    tree_broadcast(&own, sizeof own);
    return own;
}

void tree_broadcast(void *bytes, size_t count)
{
    struct node node = find_node();
    if (node.rank != 0)
        receive(bytes, count, node.rank - node.width);
    for (int distance = node.width / 2; distance > 0; distance /= 2)
        if (node.rank + distance < node.ranks)
            send(bytes, count, node.rank + distance);
}

void tree_send_to_root(void *bytes, size_t count, int from)
{
    int rank = find_node().rank;
    if (from != 0 && rank == from)
        send(bytes, count, 0);
    if (from != 0 && rank == 0)
        receive(bytes, count, from);
}
