/*
 * conformance.h: what the parts of the conformance program share.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "# rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                           \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* Of MPI_COMM_WORLD. */
extern int rank, ranks;
/* Of the test that runs, in this thread. */
extern _Thread_local int failures;

/* What rank `of` contributes at position `at` of call `call`. */
int value(int of, int at, int call);
/* Memory in which every byte is 0xee. */
void *fresh(size_t bytes);

/* exchanges.c */
void exchanges(void);
void uneven_gathers(void);

#endif
