/*
 * communicators.h: communicators from the first collective on them until they are freed.
 */
#ifndef OUTBOARD_MPI_COMMUNICATORS_H
#define OUTBOARD_MPI_COMMUNICATORS_H

#include "mpi.h"

struct group;

/* communicators_start() runs before communicators enter the table, communicators_stop() after all have left it. */
int communicators_start(void);
void communicators_stop(void);
/* Frees the groups of all communicators. */
void communicators_free_all(void);
/* The group for a call; adds a missing communicator to the table. NULL while all calls pass through. Local. */
struct group *group_of_call(MPI_Comm comm);
/* Called before the communicator is freed: ends collectives in flight on the communicator. The result is for
 * communicator_end_free(). */
MPI_Comm communicator_begin_free(MPI_Comm comm);
void communicator_end_free(MPI_Comm previous);

#endif
