/*
 * posting.h: from a call to a collective in flight.
 */
#ifndef OUTBOARD_MPI_POSTING_H
#define OUTBOARD_MPI_POSTING_H

#include "mpi.h"

#include "classes.h"
#include "methods.h"
#include "shim.h"

/* Both functions carry out a call to be offloaded and return the result of the MPI function. */
int offload(const struct call *call, const struct route *route);
int offload_nonblocking(const struct call *call, const struct route *route, MPI_Request *request);
int offload_persistent(const struct call *call, const struct route *route, MPI_Request *request);
/* Prepares the posting of an offloaded call. */
void posting_init(struct posting *posting, const struct call *call, struct group *group, uint64_t bytes);
/* Returns an MPI error code, that of OUTBOARD_ERR_RESOURCE if there is no room now. After success posting->posted is in
 * flight, and the caller must call unpack_finish(). */
int posting_post(struct posting *posting, enum form form);

#endif
