/*
 * transport.h: what the measuring program needs from a communication library.
 *
 * One implementation per interface: transport_mpi.c (any MPI library) and transport_outboard.c (Outboard's C interface).
 * At most one collective is in flight at a time. No function returns an error: a failure prints one line that names the
 * rank and the call, and ends the process, because a measurement with a failed call in it is worth nothing.
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

void transport_start(int *argc, char ***argv);
void transport_stop(void);

uint32_t transport_rank(void);
uint32_t transport_ranks(void);
/* Which library answers, for the report: one line, never NULL. */
const char *transport_library(void);

/* The buffers of the collectives come from here, so that each library may give the memory it likes best. */
void *transport_alloc(size_t bytes);

/* Starts an allgather. */
void transport_post(const void *send, void *receive, size_t bytes_per_rank);
/* Starts a broadcast from rank 0. */
void transport_broadcast(void *buffer, size_t bytes);
/* Starts an alltoall: block r of `send` goes to rank r, block r of `receive` comes from it. */
void transport_alltoall(const void *send, void *receive, size_t bytes);

/* One side of an alltoallv: for every rank the bytes of its block, and where it begins. */
struct transport_blocks {
    uint64_t *bytes;
    uint64_t *at;
};
/* Starts an alltoallv; the blocks' arrays must stay as they are until it has completed. */
void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming);
/* Gives the library the chance to progress; 1 when the collective has completed. */
int transport_test(void);
void transport_wait(void);

/* Returns when every rank has entered. */
void transport_barrier(void);
/* Brings `count` doubles of each rank to all: `all` holds count * ranks, in rank order. Also a barrier. */
void transport_exchange(const double *mine, double *all, int count);

/* Prints "rank R: sentence" and ends this process and, where the library can, the whole job. */
_Noreturn void transport_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
