/*
 * allocation.h: memory of MPI_Alloc_mem.
 */
#ifndef OUTBOARD_MPI_ALLOCATION_H
#define OUTBOARD_MPI_ALLOCATION_H

#include "mpi.h"
#include <stdbool.h>

/* Memory shared with the service process; NULL if the MPI library should allocate. */
void *allocation_make(MPI_Aint size);
/* Frees the memory; false if it was not allocated here. */
bool allocation_free(void *memory);

#endif
