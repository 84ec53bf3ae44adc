/*
 * buffers.h: the buffers of a call in liboutboard's form.
 */
#ifndef OUTBOARD_MPI_BUFFERS_H
#define OUTBOARD_MPI_BUFFERS_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory.h"
#include "unpack.h"

/* One buffer as the program passed it: `counts` and `displacements` by rank, or NULL and `count` elements, of one block
 * or for each rank. */
struct user_buffer {
    void *address;
    const int *counts;
    const int *displacements;
    int count;
    MPI_Datatype type;
};

/* Bytes and offsets by block, from `memory`: plain memory of the program, or part of the bounce buffer. */
struct buffer {
    struct user_buffer user;
    int blocks; /* one for each rank, or one of `elements`, or none */
    uint64_t elements;
    bool must_pack;
    struct shape shape;
    MPI_Count extent;
    bool packed;
    uint64_t total;
    uint64_t *bytes;
    uint64_t *offsets;
    void *memory;
};

struct buffers {
    struct buffer send;
    struct buffer receive;
    struct unpack unpack;
    uint64_t *lists;
};

/* Sets the buffer to one run of elements, or to the blocks of all `ranks`, equal or by rank. */
void buffer_set_run(struct buffer *buffer, const struct user_buffer *user_buffer, uint64_t elements);
void buffer_set_blocks(struct buffer *buffer, const struct user_buffer *user_buffer, int ranks);
/* Sets the buffer to the block of `rank` that lies, or is received, in place among the blocks of another. Returns an
 * MPI error code. */
int buffer_set_block_of(struct buffer *buffer, const struct user_buffer *user_buffer, int rank);
/* Computes all addresses and packs where necessary. Returns an MPI error code; call buffers_free_lists() also after an
 * error. */
int buffers_prepare(struct buffers *buffers, int ranks);
/* Called after posting, which has read the lists. */
void buffers_free_lists(struct buffers *buffers);
/* Never NULL, which liboutboard rejects even for no bytes. */
void *buffer_memory(const struct buffer *buffer);
/* Whether MPI would reject the buffer: null datatype, negative count, missing list. `ranks` is 0 for a single count. */
bool user_buffer_invalid(const struct user_buffer *user_buffer, int ranks);
/* Bytes of `count` elements; false beyond 64 bits. */
bool user_buffer_bytes(const struct user_buffer *user_buffer, uint64_t *bytes);

#endif
