/*
 * library.h: liboutboard, found at run time.
 */
#ifndef OUTBOARD_MPI_LIBRARY_H
#define OUTBOARD_MPI_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "outboard.h"

#define OUTBOARD_FUNCTIONS(X)                                                                                          \
    X(abi_version)                                                                                                     \
    X(attach)                                                                                                          \
    X(detach)                                                                                                          \
    X(group_offer)                                                                                                     \
    X(group_create)                                                                                                    \
    X(group_destroy)                                                                                                   \
    X(group_offloads_allgather)                                                                                        \
    X(iallgather)                                                                                                      \
    X(group_offloads_broadcast)                                                                                        \
    X(ibroadcast)                                                                                                      \
    X(group_offloads_allgatherv)                                                                                       \
    X(iallgatherv)                                                                                                     \
    X(group_offloads_alltoall)                                                                                         \
    X(ialltoall)                                                                                                       \
    X(group_offloads_alltoallv)                                                                                        \
    X(ialltoallv)                                                                                                      \
    X(group_offloads_gather)                                                                                           \
    X(igather)                                                                                                         \
    X(iscatter)                                                                                                        \
    X(igatherv)                                                                                                        \
    X(iscatterv)                                                                                                       \
    X(group_offloads_barrier)                                                                                          \
    X(ibarrier)                                                                                                        \
    X(group_offloads_reduction)                                                                                        \
    X(group_reduction_most)                                                                                            \
    X(op_create)                                                                                                       \
    X(op_free)                                                                                                         \
    X(ireduce)                                                                                                         \
    X(iallreduce)                                                                                                      \
    X(ireduce_scatter)                                                                                                 \
    X(ireduce_scatter_block)                                                                                           \
    X(iscan)                                                                                                           \
    X(iexscan)                                                                                                         \
    X(test)                                                                                                            \
    X(wait)                                                                                                            \
    X(wait_some_us)                                                                                                    \
    X(request_free)                                                                                                    \
    X(alloc)                                                                                                           \
    X(dealloc)                                                                                                         \
    X(strerror)                                                                                                        \
    X(last_error)

struct outboard_library {
#define FIELD(name) __typeof__(outboard_##name) *name;
    OUTBOARD_FUNCTIONS(FIELD)
#undef FIELD
};

/* Valid after library_load() returned true. */
extern struct outboard_library outboard;
/* False leaves the reason in `message`. */
bool library_load(char *message, size_t message_bytes);
/* Attaches this process to its service process; false leaves the reason in `message`. */
bool library_attach(char *message, size_t message_bytes);
void library_detach(void);
/* The attachment, NULL while all calls pass through. */
outboard_context *library_context(void);
/* Writes the meaning of the outcome, then the message of this thread's last failing call. */
void library_error_message(int outcome, char *message, size_t bytes);

#endif
