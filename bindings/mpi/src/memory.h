/*
 * memory.h: datatypes as bytes, and bounce buffers.
 */
#ifndef OUTBOARD_MPI_MEMORY_H
#define OUTBOARD_MPI_MEMORY_H

#include "mpi.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shape {
    uint64_t size;   /* bytes of data of one element */
    int64_t true_lb; /* offset of its first byte from the buffer address */
    bool contiguous; /* its bytes lie in memory without gaps and in the order of MPI_Pack */
    bool no_gaps;    /* contiguous, and elements follow one another without gaps */
};

int shape_of(MPI_Datatype type, struct shape *shape);
/* Packs elements, or unpacks them: `packed` holds count * shape->size bytes. Returns an MPI error code. */
int convert_elements(bool packs, void *elements, uint64_t count, MPI_Datatype type, const struct shape *shape,
                     void *packed);
int memory_start(void);
void memory_stop(void);
/* A buffer of at least this many bytes, NULL if there is none. */
void *bounce_acquire(size_t bytes);
void bounce_release(void *bounce);

#endif
