/*
 * names.h: the names of the MPI functions that the shim interposes. This file has names alone, no type of an MPI.
 */
#ifndef OUTBOARD_MPI_NAMES_H
#define OUTBOARD_MPI_NAMES_H

/* Collectives that may be offloaded: their names, their struct method, and their parameters in the words of
 * interposed.h. */
#define COLLECTIVES(X)                                                                                                 \
    X(Allgather, allgather, allgather_method, EVEN, EVEN, ALL)                                                         \
    X(Allgatherv, allgatherv, allgatherv_method, EVEN, UNEVEN, ALL)                                                    \
    X(Bcast, bcast, broadcast_method, NOTHING, EVEN, ROOT)                                                             \
    X(Alltoall, alltoall, alltoall_method, EVEN, EVEN, ALL)                                                            \
    X(Alltoallv, alltoallv, alltoallv_method, UNEVEN, UNEVEN, ALL)                                                     \
    X(Alltoallw, alltoallw, alltoallw_method, TYPED, TYPED, ALL)                                                       \
    X(Gather, gather, rooted_method, EVEN, EVEN, ROOT)                                                                 \
    X(Gatherv, gatherv, rooted_uneven_method, EVEN, UNEVEN, ROOT)                                                      \
    X(Scatter, scatter, rooted_method, EVEN, EVEN, ROOT)                                                               \
    X(Scatterv, scatterv, rooted_uneven_method, UNEVEN, EVEN, ROOT)                                                    \
    X(Barrier, barrier, barrier_method, NOTHING, NOTHING, ALL)                                                         \
    X(Reduce, reduce, reduction_method, VECTOR, EVEN, OP_ROOT)                                                         \
    X(Allreduce, allreduce, reduction_method, VECTOR, EVEN, OP)                                                        \
    X(Reduce_scatter, reduce_scatter, reduction_method, VECTOR, PART, OP)                                              \
    X(Reduce_scatter_block, reduce_scatter_block, reduction_method, VECTOR, EVEN, OP)                                  \
    X(Scan, scan, reduction_method, VECTOR, EVEN, OP)                                                                  \
    X(Exscan, exscan, reduction_method, VECTOR, EVEN, OP)                                                              \
    X(Neighbor_allgather, neighbor_allgather, neighbor_allgather_method, EVEN, EVEN, ALL)                              \
    X(Neighbor_allgatherv, neighbor_allgatherv, neighbor_allgather_method, EVEN, UNEVEN, ALL)                          \
    X(Neighbor_alltoall, neighbor_alltoall, neighbor_alltoall_method, EVEN, EVEN, ALL)                                 \
    X(Neighbor_alltoallv, neighbor_alltoallv, neighbor_alltoall_method, UNEVEN, UNEVEN, ALL)                           \
    X(Neighbor_alltoallw, neighbor_alltoallw, neighbor_alltoall_method, TYPED_AINT, TYPED_AINT, ALL)

/* Functions that make a communicator. */
#define CONSTRUCTORS(X)                                                                                                \
    X(Comm_dup)                                                                                                        \
    X(Comm_dup_with_info)                                                                                              \
    X(Comm_split)                                                                                                      \
    X(Comm_split_type)                                                                                                 \
    X(Comm_create)                                                                                                     \
    X(Comm_create_group)                                                                                               \
    X(Cart_create)                                                                                                     \
    X(Cart_sub)                                                                                                        \
    X(Graph_create)                                                                                                    \
    X(Dist_graph_create)                                                                                               \
    X(Dist_graph_create_adjacent)                                                                                      \
    X(Intercomm_merge)

/* All others. */
#define OTHERS(X)                                                                                                      \
    X(Init)                                                                                                            \
    X(Init_thread)                                                                                                     \
    X(Finalize)                                                                                                        \
    X(Alloc_mem)                                                                                                       \
    X(Free_mem)                                                                                                        \
    X(Wait)                                                                                                            \
    X(Test)                                                                                                            \
    X(Waitany)                                                                                                         \
    X(Testany)                                                                                                         \
    X(Waitall)                                                                                                         \
    X(Testall)                                                                                                         \
    X(Waitsome)                                                                                                        \
    X(Testsome)                                                                                                        \
    X(Request_get_status)                                                                                              \
    X(Request_get_status_all)                                                                                          \
    X(Request_get_status_any)                                                                                          \
    X(Request_get_status_some)                                                                                         \
    X(Iprobe)                                                                                                          \
    X(Cancel)                                                                                                          \
    X(Start)                                                                                                           \
    X(Startall)                                                                                                        \
    X(Request_free)                                                                                                    \
    X(Op_free)                                                                                                         \
    X(Type_free)                                                                                                       \
    X(Comm_free)                                                                                                       \
    X(Comm_disconnect)

#endif
