/*
 * binding.h: the MPI library of this process.
 */
#ifndef OUTBOARD_MPI_BINDING_H
#define OUTBOARD_MPI_BINDING_H

#include <stdbool.h>
#include <stdint.h>

#include "part.h"

/* The name and version of the MPI library, as in "MPICH 4.0.2". */
extern char mpi_name[64];
/* The code of the MPI library. */
extern struct code_range mpi_code;

/* Whether the caller of this function is the MPI library itself: such a call is no call of the program. */
#define CALLED_BY_MPI ((uintptr_t)__builtin_return_address(0) - mpi_code.start < mpi_code.bytes)

/* Functions of the shim, by name; each list ends with a NULL name. */
extern const struct interposed collectives_interposed[], others_interposed[];

#endif
