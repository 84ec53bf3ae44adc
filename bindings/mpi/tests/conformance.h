/*
 * conformance.h: declarations shared by the parts of the conformance program.
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

/* Rank and size of MPI_COMM_WORLD. */
extern int rank, ranks;
/* Set to leave out tests that Open MPI itself would not survive. */
extern int native;
/* Failures of the test that runs in this thread. */
extern _Thread_local int failures;

/* The contribution of rank `of` at position `at` of call `call`. */
int value(int of, int at, int call);
/* Memory in which every byte is 0xee. */
void *fresh(size_t bytes);

/* For an allgather of `count` elements in call `call`. fill_with() writes the data that rank `of` sends; wrong_in()
 * counts wrong elements. */
void fill_with(int *send, int count, int of, int call);
int wrong_in(const int *received, int count, int members, int call);
void gather_on(MPI_Comm comm, int count, int in_place, int blocking);

/* requests.c */
void request_forms(void);
void freed_early(void);
void many_in_flight(void);

/* exchanges.c */
void exchanges(void);
void uneven_gathers(void);
void padded_gathers(void);

/* One buffer of an exchange: blocks of elements of `type`, which are `stride` cells apart. */
struct blocks {
    int *cells, *counts, *displacements, total;
    MPI_Datatype type;
    int stride;
};

/* Blocks in the reverse order of ranks with a gap of one element. If `negative`, displacements are below zero. */
struct blocks blocks_of(int members, const int *counts, int stride, int negative);
void blocks_free(struct blocks *made);
/* The address that MPI takes as the buffer: the place of displacement 0. */
int *origin(const struct blocks *of, int negative);
/* Fills block `of` with the data from rank `from` to rank `to`. With `check` counts the elements that differ. */
int block(struct blocks *in, int of, int from, int to, int negative, int check);
int something_between(const struct blocks *in);
int exchanged_value(int from, int to, int at);
/* A type of ints `stride` cells apart. */
MPI_Datatype spread(int stride);
void spread_free(MPI_Datatype *type);
/* Makes the call with several counts in every form, on all ranks and on each half of the ranks in another order. */
void in_every_form(void (*call)(MPI_Comm comm, int count, int form));
/* Elements that `from` sends to `to` in an uneven exchange. */
int uneven(int from, int to, int most);

enum { STRIDED = 1, IN_PLACE = 2, BLOCKING = 4, NEGATIVE = 8, FORMS = 16, PERSISTENT = 16 };

/* The call by its blocking, persistent (to be started) or nonblocking function. */
#define POST(form, Name, lower, request, ...)                                                                          \
    ((form)&BLOCKING     ? MPI_##Name(__VA_ARGS__)                                                                     \
     : (form)&PERSISTENT ? PERSISTENT_INIT(Name)(__VA_ARGS__, MPI_INFO_NULL, request)                                  \
                         : MPI_I##lower(__VA_ARGS__, request))

/* The call in its form, from start to completion. */
#define CARRY_OUT(form, Name, lower, ...)                                                                              \
    do {                                                                                                               \
        MPI_Request posted = MPI_REQUEST_NULL;                                                                         \
        CHECK(POST(form, Name, lower, &posted, __VA_ARGS__) == MPI_SUCCESS);                                           \
        CHECK(MPI_Wait(&posted, MPI_STATUS_IGNORE) == MPI_SUCCESS);                                                    \
        CHECK(posted == MPI_REQUEST_NULL);                                                                             \
    } while (0)

/* rooted.c */
void gathers_at_a_root(void);
void scatters_from_a_root(void);

/* reductions.c */
void barriers(void);
void reductions(void);
void operators(void);
void own_operators(void);
void persistent_reductions(void);

/* persistent.c */
#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_INIT(Name) MPI_##Name##_init
#else
#include <mpi-ext.h>
#define PERSISTENT_INIT(Name) MPIX_##Name##_init
#endif
void persistent_collectives(void);
void persistent_in_any_order(void);

#endif
