/*
 * backlog.h: calls of this rank that wait until the service process has room for them.
 */
#ifndef OUTBOARD_MPI_BACKLOG_H
#define OUTBOARD_MPI_BACKLOG_H

#include <stdbool.h>

#include "methods.h"
#include "shim.h"

struct op;

/* Posts the call that `op` stands for, or keeps it if there is no room. Never waits for another rank. Returns an MPI
 * error code. */
int backlog_post_or_keep(struct op *op, struct posting *posting, enum form form);
/* Posts kept calls as far as there is room. */
void backlog_post(void);
/* Waits until no call of the group is kept: a blocking call must not overtake it. */
void backlog_flush(struct group *group);
/* Whether a call on the communicator, or on any (MPI_COMM_NULL), is kept. */
bool backlog_holds(MPI_Comm comm);

#endif
