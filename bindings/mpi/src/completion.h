/*
 * completion.h: a call of the MPI_Wait or MPI_Test family around the MPI function that carries it out (requests.c).
 */
#ifndef OUTBOARD_MPI_COMPLETION_H
#define OUTBOARD_MPI_COMPLETION_H

#include "shim.h"

enum patience { TEST, WAIT_ANY, WAIT_ALL };

/* One call of the MPI_Wait and MPI_Test families that names offloaded requests. */
#define COMPLETION_INLINE 8
struct completion {
    int count;
    const MPI_Request *now;
    MPI_Request *before; /* the handles as they were, to find failed and timed ones again */
    int *codes;          /* error code by position */
    int failures;
    int first;           /* code of the first failure */
    MPI_Comm comm;       /* whose error handler hears of it */
    double began;
    bool timed;          /* one of them is in timings.c */
    struct completion *outer;
    MPI_Request few_before[COMPLETION_INLINE];
    int few_codes[COMPLETION_INLINE];
};

/* False when none of the requests is offloaded or timed: the call is MPI's alone. Sleeps where all are offloaded. */
bool completion_begin(struct completion *completion, int count, const MPI_Request *requests, enum patience patience);
/* Turns the outcome of the PMPI_ call into that of the MPI_ call. The request at `index` has completed, or none where
 * there is none such. */
int completion_end_one(struct completion *completion, int outcome, int index, MPI_Status *status);
/* So many have completed, those at `indices`, or the first where that is NULL; the statuses are theirs. */
int completion_end_some(struct completion *completion, int outcome, int done, const int *indices,
                        MPI_Status *statuses);
/* The sleeping and the timing alone, for the Fortran names. */
void completion_begin_fortran(struct completion *completion, int count, const MPI_Fint *requests,
                              enum patience patience);
void completion_end_fortran(struct completion *completion, const MPI_Fint *requests);

#endif
