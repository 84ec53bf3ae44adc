/*
 * scratch.h: large blocks that the shim needs for a short time.
 */
#ifndef OUTBOARD_MPI_SCRATCH_H
#define OUTBOARD_MPI_SCRATCH_H

#include <stddef.h>

/* Zeroed memory at a multiple of 64; NULL if there is none. */
void *scratch_allocate(size_t bytes);
/* NULL is ignored. */
void scratch_free(void *memory);

#endif
