/*
 * calls.h: the collectives that can be measured: the contribution of every rank, how a call is posted, and the expected
 * result. The rest of the measuring program knows no collective. A ping-pong counts as a collective: a blocking message
 * from rank 0 to the last rank, which sends it back. Other ranks take no part in a ping-pong.
 *
 * Roots are rank 0. Reductions add 64-bit unsigned integers modulo 2^64, where the order of adding does not matter. So
 * every result is known to the last bit.
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

/* One call of a collective on this rank. */
struct call {
    const struct collective *what;
    size_t bytes;    /* size in the report: of a block, or of a whole vector that is reduced */
    uint64_t number; /* decides the bytes of the call, which differ from call to call */
    int silent_rank; /* neither sends nor receives a block (alltoallv); -1: no rank is silent */
};

/* The collective with this name; NULL when there is none. */
const struct collective *call_named(const char *name);

/* Buffers for calls of up to `largest` bytes, on any rank. */
struct buffers call_buffers(const struct collective *what, size_t largest);

/* Writes this rank's contribution. */
void call_fill(const struct call *call, const struct buffers *buffers);
/* Starts the call. */
void call_post(const struct call *call, const struct buffers *buffers);
/* Checks every byte of the result; prints the first wrong byte on stderr. */
bool call_wrong(const struct call *call, const struct buffers *buffers);
/* Whether no rank may leave the call before all ranks have entered it. For such a call the order of instants is
 * checked. */
bool call_synchronises(const struct collective *what);

#endif
