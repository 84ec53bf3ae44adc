/*
 * neighbors.h: the neighbours of this rank in the topology of a communicator.
 */
#ifndef OUTBOARD_MPI_NEIGHBORS_H
#define OUTBOARD_MPI_NEIGHBORS_H

#include <stdbool.h>

struct call;
struct group;
struct neighbors;

/* Frees the list; NULL is ignored. */
void neighbors_free(struct neighbors *neighbors);
/* The length of the lists of a neighbourhood collective's send buffer, or of its receive buffer. */
int neighbors_count(const struct group *group, bool sends);
/* Whether the call is a neighbourhood collective. */
bool is_neighborhood(const struct call *call);

#endif
