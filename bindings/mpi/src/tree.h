/*
 * tree.h: messages among the ranks of MPI_COMM_WORLD in MPI_Init.
 */
#ifndef OUTBOARD_MPI_TREE_H
#define OUTBOARD_MPI_TREE_H

#include <stddef.h>

/* Rank 0 receives the elements of all ranks, each in its place. Other ranks receive only some elements. */
void tree_gather(void *all, size_t each);
void tree_broadcast(void *bytes, size_t count);
/* The least of all ranks' numbers. */
int tree_minimum(int own);
/* Sends bytes from rank `from` to rank 0. */
void tree_send_to_root(void *bytes, size_t count, int from);

#endif
