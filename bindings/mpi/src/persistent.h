/*
 * persistent.h: persistent collectives.
 */
#ifndef OUTBOARD_MPI_PERSISTENT_H
#define OUTBOARD_MPI_PERSISTENT_H

#include "mpi.h"
#include <stdbool.h>

struct op;
struct persistent;
struct call;
struct posting;

/* Makes an inactive MPI request that posts the call, whose buffers are set, whenever it is started. The function takes
 * over the group of `posting`, also when the function fails. */
int request_make_persistent(const struct posting *posting, MPI_Request *request);
/* Starts the request; false if it is not the shim's. */
bool request_start(MPI_Request *request, int *outcome);
/* Called before MPI frees a request. */
void request_release(MPI_Request request);

/* ---- for requests.c ---- */

/* Sets the largest tag, which no message on requests_self() has. */
int persistent_start(int *largest_tag);
/* Called before the rank leaves the service process and MPI is finalized: the request cannot be started any more. */
void persistent_drop_group(struct op *op);
/* Ends the collective and the receive that MPI waits for. */
void persistent_complete(struct op *op);
void persistent_free(struct persistent *persistent);
const struct call *persistent_call(const struct persistent *persistent);

#endif
