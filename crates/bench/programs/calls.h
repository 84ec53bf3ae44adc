/*
 * calls.h: the collectives that can be measured: what every rank contributes to a call, how it is posted, and what must
 * have arrived. No collective of the measuring program is known anywhere else in it. A ping-pong is measured as one of
 * them: a message of rank 0 to the last rank, which sends back what has come, by blocking calls; nobody else takes
 * part.
 *
 * Roots are rank 0. Reductions add 64-bit unsigned integers modulo 2^64, which no order of adding changes, so that
 * every result can be told to the last bit.
 */
#ifndef CALLS_H
#define CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One collective; a row of the table in calls.c. */
struct collective;

struct buffers {
    void *send;
    void *receive;
};

/* One call of it on this rank. */
struct call {
    const struct collective *what;
    size_t bytes;    /* as in the report: of a block, or of a whole vector that is reduced */
    uint64_t number; /* tells its bytes from those of other calls */
    int silent_rank; /* has no block for anybody and gets none (alltoallv); -1: nobody is silent */
};

/* The collective of that name; NULL when there is none. */
const struct collective *call_named(const char *name);

/* Buffers in which calls of up to so many bytes find room, on any rank. */
struct buffers call_buffers(const struct collective *what, size_t largest);

/* Fills in what this rank contributes. */
void call_fill(const struct call *call, const struct buffers *buffers);
/* Starts the call. */
void call_post(const struct call *call, const struct buffers *buffers);
/* Looks at every byte that had to arrive; the first wrong one is named on stderr. */
bool call_wrong(const struct call *call, const struct buffers *buffers);
/* Whether nobody may leave such a call before all have entered it: the order of instants is its result. */
bool call_synchronises(const struct collective *what);

#endif
