/*
 * shim.h: the collectives that the MPI shim may offload, and what all its modules need.
 *
 * The shim is loaded before the MPI library (LD_PRELOAD). It passes collectives to the service process through
 * liboutboard, if liboutboard can carry them out and all members of the communicator have agreed. The shim calls MPI by
 * PMPI_ names only. A profiling tool above the shim that calls PMPI_ names itself bypasses the shim: without MPI_Init
 * the shim does nothing at all.
 *
 * Invariants: whether a call is offloaded never depends on local state. It depends on agreements of the communicator's
 * members, the number of their calls, and arguments that MPI makes equal on all members. Nothing collective happens
 * inside a nonblocking call.
 */
#ifndef OUTBOARD_MPI_SHIM_H
#define OUTBOARD_MPI_SHIM_H

#include <stdint.h>

/* Room for a sentence that a rank prints. */
#define SHIM_MESSAGE_BYTES 512

/* Collectives that may be offloaded: their names, their struct method, and their parameters in the words of
 * interposed.h. */
#define COLLECTIVES(X)                                                                                                 \
    X(Allgather, allgather, ALLGATHER, allgather_method, EVEN, EVEN, ALL)                                              \
    X(Allgatherv, allgatherv, ALLGATHERV, allgatherv_method, EVEN, UNEVEN, ALL)                                        \
    X(Bcast, bcast, BCAST, broadcast_method, NOTHING, EVEN, ROOT)                                                      \
    X(Alltoall, alltoall, ALLTOALL, alltoall_method, EVEN, EVEN, ALL)                                                  \
    X(Alltoallv, alltoallv, ALLTOALLV, alltoallv_method, UNEVEN, UNEVEN, ALL)                                          \
    X(Gather, gather, GATHER, rooted_method, EVEN, EVEN, ROOT)                                                         \
    X(Gatherv, gatherv, GATHERV, rooted_uneven_method, EVEN, UNEVEN, ROOT)                                             \
    X(Scatter, scatter, SCATTER, rooted_method, EVEN, EVEN, ROOT)                                                      \
    X(Scatterv, scatterv, SCATTERV, rooted_uneven_method, UNEVEN, EVEN, ROOT)                                          \
    X(Barrier, barrier, BARRIER, barrier_method, NOTHING, NOTHING, ALL)                                                \
    X(Reduce, reduce, REDUCE, reduction_method, VECTOR, EVEN, OP_ROOT)                                                 \
    X(Allreduce, allreduce, ALLREDUCE, reduction_method, VECTOR, EVEN, OP)                                             \
    X(Reduce_scatter, reduce_scatter, REDUCE_SCATTER, reduction_method, VECTOR, PART, OP)                              \
    X(Reduce_scatter_block, reduce_scatter_block, REDUCE_SCATTER_BLOCK, reduction_method, VECTOR, EVEN, OP)            \
    X(Scan, scan, SCAN, reduction_method, VECTOR, EVEN, OP)                                                            \
    X(Exscan, exscan, EXSCAN, reduction_method, VECTOR, EVEN, OP)

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
