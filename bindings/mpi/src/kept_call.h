/*
 * kept_call.h: a call with arguments that the program may free before the call is posted.
 */
#ifndef OUTBOARD_MPI_KEPT_CALL_H
#define OUTBOARD_MPI_KEPT_CALL_H

#include <stdbool.h>

#include "methods.h"

struct kept_call {
    struct call call;
    MPI_Datatype *types; /* duplicates of the program's datatypes, those of the send buffer first */
    int types_count;
    int64_t lists[];
};

/* Keeps the call of a posting whose buffers are set. `lists` says whether the program may change its lists of counts,
 * which it may not before a nonblocking call completes (MPI 4.1, 6.12). Returns an MPI error code. */
int kept_call_make(const struct posting *posting, bool lists, struct kept_call **made);
/* NULL is ignored. */
void kept_call_free(struct kept_call *kept);

#endif
