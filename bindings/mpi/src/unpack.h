/*
 * unpack.h: bytes that arrive packed.
 */
#ifndef OUTBOARD_MPI_UNPACK_H
#define OUTBOARD_MPI_UNPACK_H

#include "mpi.h"
#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

/* Elements that follow one another from this offset of the buffer. */
struct piece {
    int64_t offset; /* bytes */
    uint64_t elements;
    MPI_Datatype type;
    struct shape shape;
};

/* The destination of received bytes when a collective has ended. `bounce` holds the pieces one after another; `bounce`
 * is NULL if no piece is packed. */
struct unpack {
    void *bounce;
    void *receive;
    struct piece *pieces;
    int count;
    MPI_Datatype *types; /* duplicates that the pieces use */
    int types_count;
};

/* Takes a bounce buffer of `bytes` bytes for `count` pieces, perhaps none, and takes over the list of pieces.
 * unpack_finish() unpacks the pieces into `receive`. The program may free its datatypes before that. Returns an MPI
 * error code. */
int unpack_prepare(struct unpack *unpack, void *receive, struct piece *pieces, int count, uint64_t bytes);
/* Moves the bytes if `arrived`, then releases the bounce buffer. */
int unpack_finish(struct unpack *unpack, bool arrived);

#endif
