/*
 * completion.h: a call of the MPI_Wait or MPI_Test family around the MPI function that carries it out.
 */
#ifndef OUTBOARD_MPI_COMPLETION_H
#define OUTBOARD_MPI_COMPLETION_H

#include "mpi.h"
#include <stdbool.h>

struct op;

enum wait_kind { TEST, WAIT_ANY, WAIT_ALL };

/* One call of the MPI_Wait and MPI_Test families with offloaded requests among its requests. */
#define COMPLETION_INLINE 8
struct completion {
    int count;
    const MPI_Request *handles;
    MPI_Request *handles_before; /* the handles before the call, to find failed and timed requests again */
    int *codes;          /* error code by position */
    int failures;
    int first;           /* code of the first failure */
    MPI_Comm comm;       /* the errors are raised on its handler */
    double began;
    bool timed;          /* one of the requests is in timings.c */
    bool mixed;          /* a wait for any of several requests, with requests of the shim and of the MPI library */
    int flag;            /* for the caller's use */
    struct completion *outer;
    MPI_Request inline_before[COMPLETION_INLINE];
    int inline_codes[COMPLETION_INLINE];
};

/* False if none of the requests is offloaded or timed: MPI handles the call alone. Else waits for the offloaded
 * requests as far as `wait_kind` allows; the function sleeps if all requests are offloaded. */
bool completion_begin(struct completion *completion, int count, const MPI_Request *requests, enum wait_kind wait_kind);
/* Turns the outcome of the PMPI_ call into the outcome of the MPI_ call. The request at `index` has completed, or no
 * request has if there is no such index. */
int completion_end_one(struct completion *completion, int outcome, int index, MPI_Status *status);
/* `done` requests have completed: the requests at `indices`, or the first ones if `indices` is NULL. `statuses` belong
 * to the completed requests. */
int completion_end_some(struct completion *completion, int outcome, int done, const int *indices,
                        MPI_Status *statuses);
/* Whether the MPI function could wait for ever now, since none of the shim's requests has ended: the caller tests
 * instead, and asks again. */
bool completion_pends(struct completion *completion);
/* Whether this thread's call will report the failure of `op`. */
bool completion_takes_failure(const struct op *op, int code);

#endif
