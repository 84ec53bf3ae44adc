/*
 * requests.h: what requests.c and persistent.c share: one collective and the MPI request that stands for it.
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
    MPI_Comm comm; /* MPI_COMM_NULL once the communicator is gone */
    struct landing landing;
    bool claimed;
    bool in_flight;
    atomic_bool ended;
    int outcome; /* of liboutboard */
    int code;    /* of MPI, when moving the bytes failed */
    char sentence[MPI_MAX_ERROR_STRING];
    struct persistent *again; /* of a persistent request, else NULL */
    struct op *next_in_flight;
    struct op *next_in_bucket;
};

/* NULL when the request is none of ours. */
struct op *op_of(MPI_Request request);
/* From now on the request is ours, and no more. */
void op_remember(struct op *op);
void op_forget(struct op *op);
/* The MPI error code of a collective that has ended. */
int op_failure(const struct op *op);
/* A collective of it is in flight. */
void op_fly(struct op *op, const struct posting *posting);

/* ---- persistent.c ---- */

int persistent_begin(void);
void persistent_end(void);
/* The service process is about to be left, and MPI to be finalized: the request is not started again. */
void persistent_leave(struct op *op);
/* The collective has ended, and so has what MPI waits for; `op` may be gone then. */
void persistent_ended(struct op *op);

#endif
