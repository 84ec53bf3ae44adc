/*
 * transport.h: what the measuring program needs from a communication library.
 *
 * One implementation per interface: transport_mpi.c (any MPI library) and transport_outboard.c (Outboard's C
 * interface). At most one collective and one pattern of messages are in flight at a time. No function returns an error:
 * a failure prints one line that names the rank and the call, and ends the process, because a measurement with a failed
 * call in it is worth nothing.
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

/* Whether the collectives below are started, and waited for by transport_wait, or are the library's blocking calls
 * where it has any: they have then ended when they return, and transport_wait has nothing to wait for. */
void transport_blocking(int on);

/* For every rank the bytes of its block, and where it begins. The arrays must stay as they are until the collective
 * that was started with them has completed. */
struct transport_blocks {
    uint64_t *bytes;
    uint64_t *at;
};

/* Each starts one collective, as MPI's of that name with an I before it. Bytes are those of one block; blocks for or of
 * all ranks lie side by side where no blocks are given. Elements are 64-bit unsigned integers, and are added. */
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

/* A message between this rank and another, in its memory. */
struct transport_message {
    int sent;      /* or received */
    uint32_t peer;
    void *memory;
    size_t bytes;
};

/* Starts messages one by one, each by a nonblocking call of its own. Those between two ranks keep their order. */
void transport_messages(const struct transport_message *messages, int count);
/* Keeps a pattern of messages, at most one at a time; each start of it is one call: of Outboard a recorded group, of
 * MPI persistent requests. */
void transport_record(const struct transport_message *messages, int count);
void transport_start_recorded(void);
void transport_forget_recorded(void);

/* One message between this rank and another by the library's blocking call, which of Outboard is post and wait. */
void transport_send(uint32_t to, const void *memory, size_t bytes);
void transport_receive(uint32_t from, void *memory, size_t bytes);

/* Waits for all that was started. */
void transport_wait(void);

/* Returns when every rank has entered; what the program itself synchronises with. */
void transport_barrier(void);
/* Brings `count` doubles of each rank to all: `all` holds count * ranks, in rank order. Also a barrier. */
void transport_exchange(const double *mine, double *all, int count);

/* Prints "rank R: sentence" and ends this process and, where the library can, the whole job. */
_Noreturn void transport_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
