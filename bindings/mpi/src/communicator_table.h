/*
 * communicator_table.h: the table of communicators.
 */
#ifndef OUTBOARD_MPI_COMMUNICATOR_TABLE_H
#define OUTBOARD_MPI_COMMUNICATOR_TABLE_H

#include "mpi.h"
#include <stdbool.h>

struct group;

/* NULL when the communicator is not in the table. Takes no lock. */
struct group *group_of(MPI_Comm comm);
/* False without memory. */
bool communicator_table_add(struct group *group);
void communicator_table_remove(MPI_Comm comm);
int communicator_table_count(void);
/* Any communicator that is left, or NULL. */
struct group *communicator_table_any(void);
void communicator_table_free(void);

#endif
