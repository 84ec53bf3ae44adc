/*
 * transport.h: the communication library, as the measuring program uses it.
 *
 * One implementation per interface: transport_mpi.c (any MPI library), transport_outboard.c (Outboard's C interface)
 * and transport_sockets.c. At most one collective and one pattern of messages are in flight at a time. No function
 * returns an error. A failure prints one line that names the rank and the call, and ends the process, because a
 * measurement with a failed call is worth nothing.
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

void transport_start(int *argc, char ***argv);
void transport_stop(void);

uint32_t transport_rank(void);
uint32_t transport_ranks(void);
/* The library's name and version for the report: one line, never NULL. */
const char *transport_library(void);

/* Allocates the buffers of the collectives, so that each library can provide the memory that suits it. */
void *transport_alloc(size_t bytes);

/* Chooses between nonblocking collectives, for which transport_wait waits, and the library's blocking calls if it has
 * any. After a blocking call transport_wait has nothing to wait for. */
void transport_blocking(int on);

/* The bytes and the start of each rank's block. The arrays must not change before their collective completes. */
struct transport_blocks {
    uint64_t *bytes;
    uint64_t *at;
};

/* Each function starts one nonblocking collective, with the name that the collective has in MPI. `bytes` is the size of
 * one block. Without `transport_blocks` the blocks of all ranks lie side by side. Elements are 64-bit unsigned
 * integers, and are added. */
void transport_allgather(const void *send, void *receive, size_t bytes);
void transport_allgatherv(const void *send, void *receive, const struct transport_blocks *incoming);
void transport_alltoall(const void *send, void *receive, size_t bytes);
void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming);
void transport_broadcast(void *buffer, size_t bytes, uint32_t root);
void transport_gather(const void *send, void *receive, size_t bytes, uint32_t root);
void transport_gatherv(const void *send, void *receive, const struct transport_blocks *incoming, uint32_t root);
void transport_scatter(const void *send, void *receive, size_t bytes, uint32_t root);
void transport_scatterv(const void *send, const struct transport_blocks *outgoing, void *receive, uint32_t root);
void transport_reduce(const void *send, void *receive, size_t elements, uint32_t root);
void transport_allreduce(const void *send, void *receive, size_t elements);
void transport_reduce_scatter_block(const void *send, void *receive, size_t elements_per_rank);
void transport_scan(const void *send, void *receive, size_t elements);
void transport_ibarrier(void);

/* A message between this rank and another, and its memory. */
struct transport_message {
    int sent;      /* 0: received */
    uint32_t peer;
    void *memory;
    size_t bytes;
};

/* Starts each message by a nonblocking call. Messages between two ranks keep their order. */
void transport_messages(const struct transport_message *messages, int count);
/* Records a pattern of messages, at most one at a time. One call starts the whole pattern: with Outboard a recorded
 * group, with MPI persistent requests. */
void transport_record(const struct transport_message *messages, int count);
void transport_start_recorded(void);
void transport_forget_recorded(void);

/* Sends or receives one message by the library's blocking call (for Outboard: post and wait). */
void transport_send(uint32_t to, const void *memory, size_t bytes);
void transport_receive(uint32_t from, void *memory, size_t bytes);

/* Waits for everything that was started. */
void transport_wait(void);

/* Returns when every rank has entered; the program's own synchronisation. */
void transport_barrier(void);
/* Gathers `count` doubles of each rank on all ranks: `all` holds count * ranks, in rank order. Also a barrier. */
void transport_exchange(const double *mine, double *all, int count);

/* Prints "rank R: sentence" and ends this process and, if the library can, the whole job. */
_Noreturn void transport_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
