/*
 * communicators.h: communicators from the first collective on them until they are freed.
 */
#ifndef OUTBOARD_MPI_COMMUNICATORS_H
#define OUTBOARD_MPI_COMMUNICATORS_H

#include <mpi.h>

struct group;

/* Before communicators enter the table, and after all have left it. */
int communicators_start(void);
void communicators_stop(void);
/* Frees the groups of all communicators. */
void communicators_free_all(void);
/* The group for a call; enters the communicator if it is not in the table. NULL while all calls pass through. Local. */
struct group *group_of_call(MPI_Comm comm);
/* Before the communicator is freed: ends collectives in flight on it. The result is for communicator_end_free(). */
MPI_Comm communicator_begin_free(MPI_Comm comm);
void communicator_end_free(MPI_Comm previous);

#endif
