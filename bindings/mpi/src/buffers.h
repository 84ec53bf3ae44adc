/*
 * buffers.h: the buffers of a call in liboutboard's form.
 */
#ifndef OUTBOARD_MPI_BUFFERS_H
#define OUTBOARD_MPI_BUFFERS_H

#include "mpi.h"
#include <stdbool.h>
#include <stdint.h>

#include "memory.h"
#include "unpack.h"

/* One buffer as the program passed it. `counts` and `displacements` are by rank; if they are NULL, the buffer is one
 * block, or a block for each rank, of `count` elements. If there are `types`, each block has its own, and displacements
 * count elements of `type`. */
struct user_buffer {
    void *address;
    const void *counts;        /* of int, or of MPI_Count if `wide_counts` */
    const void *displacements; /* of int, or of MPI_Aint if `wide_displacements` */
    int64_t count;
    MPI_Datatype type;
    bool wide_counts;
    bool wide_displacements;
    const MPI_Datatype *types;
};

static inline int64_t user_buffer_count(const struct user_buffer *user_buffer, int rank)
{
    const void *counts = user_buffer->counts;
    return user_buffer->wide_counts ? ((const MPI_Count *)counts)[rank] : ((const int *)counts)[rank];
}

static inline int64_t user_buffer_displacement(const struct user_buffer *user_buffer, int rank)
{
    const void *displacements = user_buffer->displacements;
    if (user_buffer->wide_displacements)
        return ((const MPI_Aint *)displacements)[rank];
    return ((const int *)displacements)[rank];
}

static inline MPI_Datatype user_buffer_type(const struct user_buffer *user_buffer, int block)
{
    return user_buffer->types == NULL ? user_buffer->type : user_buffer->types[block];
}

/* A buffer in bytes and offsets by block. Offsets begin at `memory`: plain memory of the program, or part of the
 * bounce buffer. */
struct buffer {
    struct user_buffer user;
    int blocks; /* one for each rank, or one of `elements`, or none */
    uint64_t elements;
    bool must_pack;
    struct shape *shapes; /* by block, or one for all blocks */
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
    struct shape *shapes;
    void *sorted; /* lists that a method has made, or NULL */
};

/* Sets the buffer to one run of elements, or to the blocks of all `ranks`, of equal or different sizes. */
void buffer_set_run(struct buffer *buffer, const struct user_buffer *user_buffer, uint64_t elements);
void buffer_set_blocks(struct buffer *buffer, const struct user_buffer *user_buffer, int ranks);
/* Sets the buffer to the block of `rank` in place: the block lies among the blocks of another buffer. Returns an MPI
 * error code. */
int buffer_set_block_of(struct buffer *buffer, const struct user_buffer *user_buffer, int rank);
/* Computes all addresses and packs where necessary. Returns an MPI error code; call buffers_free_lists() also after an
 * error. */
int buffers_prepare(struct buffers *buffers, int ranks);
/* Called after posting, which has read the lists. */
void buffers_free_lists(struct buffers *buffers);
/* The address of the buffer for liboutboard: never NULL, which liboutboard rejects even for no bytes. */
void *buffer_memory(const struct buffer *buffer);
/* Whether MPI would reject the buffer: null datatype, negative count, missing list, no memory, MPI_IN_PLACE. `ranks` is
 * 0 for a single count. */
bool user_buffer_invalid(const struct user_buffer *user_buffer, int ranks);
/* Bytes of `count` elements; false beyond 64 bits. */
bool user_buffer_bytes(const struct user_buffer *user_buffer, uint64_t *bytes);

#endif
