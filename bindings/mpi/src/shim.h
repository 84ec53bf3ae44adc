/*
 * shim.h: the collectives that the MPI shim may offload, and what all its modules need.
 *
 * The shim is loaded before the MPI library (LD_PRELOAD). It passes collectives to the service process through
 * liboutboard, if liboutboard can carry them out and all members of the communicator have agreed. The shim calls the
 * MPI library through `mpi`, a table of its PMPI_ functions.
 *
 * Invariants: whether a call is offloaded never depends on local state. It depends on agreements of the communicator's
 * members, the number of their calls, and arguments that MPI makes equal on all members. Nothing collective happens
 * inside a nonblocking call.
 */
#ifndef OUTBOARD_MPI_SHIM_H
#define OUTBOARD_MPI_SHIM_H

#include <stdint.h>

#include "names.h"

/* Room for a sentence that a rank prints. */
#define SHIM_MESSAGE_BYTES 512

enum collective {
#define NUMBER(Name, lower, ...) COLLECTIVE_##lower,
    COLLECTIVES(NUMBER)
#undef NUMBER
    COLLECTIVES_KNOWN
};

/* The form of the MPI call; forms are counted separately. */
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

/* Pointer arithmetic that may leave the object, as MPI_BOTTOM and negative lower bounds do. */
static inline void *address_plus(const void *address, int64_t by)
{
    return (void *)((uintptr_t)address + (uintptr_t)by);
}

#endif
