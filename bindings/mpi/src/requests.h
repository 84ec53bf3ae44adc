/*
 * requests.h: shared by requests.c and persistent.c: one collective and the MPI request that stands for it.
 */
#ifndef OUTBOARD_MPI_REQUESTS_H
#define OUTBOARD_MPI_REQUESTS_H

#include <stdatomic.h>

#include "completion.h"

/* persistent.c */
struct persistent;

struct op {
    MPI_Request request;
    outboard_request *posted;
    MPI_Comm comm; /* MPI_COMM_NULL once the communicator is freed */
    struct unpack unpack;
    bool claimed;
    bool in_flight;
    atomic_bool ended;
    int outcome; /* the result of liboutboard */
    int code;    /* the error of MPI if moving the bytes failed */
    char message[MPI_MAX_ERROR_STRING];
    struct persistent *persistent; /* for a persistent request, else NULL */
    struct op *next_in_flight;
    struct op *next_in_bucket;
};

/* NULL if the request is not the shim's. */
struct op *op_of(MPI_Request request);
/* Registers the request as the shim's, and unregisters it. */
void op_register(struct op *op);
void op_unregister(struct op *op);
/* The MPI error code of a collective that has ended. */
int op_failure(const struct op *op);
/* Puts a collective of `op` in flight. */
void op_put_in_flight(struct op *op, const struct posting *posting);

/* ---- persistent.c ---- */

int persistent_start(void);
void persistent_stop(void);
/* Before the service process is left and MPI finalized: the request cannot be started any more. */
void persistent_drop_group(struct op *op);
/* Ends the collective and the receive that MPI waits for; `op` may be gone afterwards. */
void persistent_complete(struct op *op);

#endif
