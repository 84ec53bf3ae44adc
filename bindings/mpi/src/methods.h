/*
 * methods.h: calls, and the functions that offload each collective.
 */
#ifndef OUTBOARD_MPI_METHODS_H
#define OUTBOARD_MPI_METHODS_H

#include "mpi.h"
#include <stdbool.h>
#include <stdint.h>

#include "buffers.h"
#include "groups.h"
#include "shim.h"

/* Stands for the bytes of a call if no rank alone knows the bytes. */
#define BYTES_UNKNOWN UINT64_MAX

/* One collective with its MPI arguments. */
struct call {
    enum collective collective;
    MPI_Comm comm;
    struct user_buffer send; /* a reduction uses only the buffer, a broadcast nothing */
    struct user_buffer receive;
    int root;
    MPI_Op op;
};

/* A call that is being posted to liboutboard. */
struct posting {
    const struct call *call;
    struct group *group;
    uint64_t bytes; /* that all ranks know: of each rank, of a block, or of all ranks together */
    struct buffers buffers;
    outboard_request *posted;
};

static inline bool posting_is_root(const struct posting *posting)
{
    return posting->group->rank == posting->call->root;
}

/* The functions that offload one collective. */
struct method {
    /* Returns the bytes that all ranks know from arguments that MPI makes equal, or BYTES_UNKNOWN. False for calls that
     * liboutboard does not carry out and arguments that MPI would reject: these are left to MPI. */
    bool (*measure)(const struct call *call, const struct group *group, uint64_t *bytes);
    /* Whether the group's configuration offloads this many bytes. */
    bool (*allows)(const struct group *group, uint64_t bytes);
    /* Whether the result depends on the path. Only in learning mode one run tries such calls on both paths. */
    bool reduces;
    /* Sets the buffers. Returns an MPI error code. */
    int (*set_buffers)(struct posting *posting);
    /* Posts the buffers that buffers_prepare() has computed. Returns MPI_SUCCESS, or an error code for lengths that MPI
     * requires to be equal and that differ. */
    int (*post)(struct posting *posting);
};

extern const struct method allgather_method, allgatherv_method, broadcast_method, alltoall_method, alltoallv_method,
    alltoallw_method, rooted_method, rooted_uneven_method, barrier_method, reduction_method, neighbor_allgather_method,
    neighbor_alltoall_method;

const struct method *method_of(enum collective collective);

#endif
