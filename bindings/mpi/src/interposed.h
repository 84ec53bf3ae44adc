/*
 * interposed.h: the collectives and the constructors of communicators that the shim interposes, each described once for
 * its C name and its Fortran names.
 *
 * A parameter is written P(type, name), so that one list gives both the declarations (P is PARAMETER) and the names (P
 * is ARGUMENT). If this header is included behind fortran.h, the types are Fortran's, else C's.
 */
#ifndef OUTBOARD_MPI_INTERPOSED_H
#define OUTBOARD_MPI_INTERPOSED_H

#include <mpi.h>
#include <stdbool.h>

#include "shim.h"

#ifdef OUTBOARD_MPI_FORTRAN_H
typedef char *input, *output;
typedef MPI_Fint *number, *numbers, *type_handle, *op_handle, *comm_handle, *group_handle, *info_handle;
#define BUFFER_OF(address) fortran_buffer(address)
#define NUMBER_OF(number) (*(number))
#define TYPE_OF(handle) PMPI_Type_f2c(*(handle))
#define OP_OF(handle) PMPI_Op_f2c(*(handle))
#define COMM_OF(handle) PMPI_Comm_f2c(*(handle))
#define FROM_FORTRAN true
#else
typedef const void *input;
typedef void *output;
typedef int number;
typedef const int *numbers;
typedef MPI_Datatype type_handle;
typedef MPI_Op op_handle;
typedef MPI_Comm comm_handle;
typedef MPI_Group group_handle;
typedef MPI_Info info_handle;
#define BUFFER_OF(address) ((void *)(address))
#define NUMBER_OF(number) (number)
#define TYPE_OF(handle) (handle)
#define OP_OF(handle) (handle)
#define COMM_OF(handle) (handle)
#define FROM_FORTRAN false
#endif

#define PARAMETER(type, name) type name,
#define ARGUMENT(type, name) name,
#define UNWRAP(...) __VA_ARGS__

/* ---- collectives: the send buffer, the receive buffer, and the rest, as COLLECTIVES in shim.h names them ---- */

/* One block, or one equal block for each rank. */
#define SEND_EVEN(P) P(input, sendbuf) P(number, sendcount) P(type_handle, sendtype)
#define SEND_EVEN_VALUE {BUFFER_OF(sendbuf), NULL, NULL, NUMBER_OF(sendcount), TYPE_OF(sendtype)}
#define RECEIVE_EVEN(P) P(output, recvbuf) P(number, recvcount) P(type_handle, recvtype)
#define RECEIVE_EVEN_VALUE {BUFFER_OF(recvbuf), NULL, NULL, NUMBER_OF(recvcount), TYPE_OF(recvtype)}
/* Blocks of different sizes, by rank. */
#define SEND_UNEVEN(P) P(input, sendbuf) P(numbers, sendcounts) P(numbers, sdispls) P(type_handle, sendtype)
#define SEND_UNEVEN_VALUE {BUFFER_OF(sendbuf), sendcounts, sdispls, 0, TYPE_OF(sendtype)}
#define RECEIVE_UNEVEN(P) P(output, recvbuf) P(numbers, recvcounts) P(numbers, rdispls) P(type_handle, recvtype)
#define RECEIVE_UNEVEN_VALUE {BUFFER_OF(recvbuf), recvcounts, rdispls, 0, TYPE_OF(recvtype)}
/* A vector to reduce, with the count and datatype of the receive buffer. */
#define SEND_VECTOR(P) P(input, sendbuf)
#define SEND_VECTOR_VALUE {BUFFER_OF(sendbuf), NULL, NULL, 0, MPI_DATATYPE_NULL}
/* The elements of a vector that the list gives to this rank. */
#define RECEIVE_PART(P) P(output, recvbuf) P(numbers, recvcounts) P(type_handle, recvtype)
#define RECEIVE_PART_VALUE {BUFFER_OF(recvbuf), recvcounts, NULL, 0, TYPE_OF(recvtype)}
#define SEND_NOTHING(P)
#define SEND_NOTHING_VALUE {NULL, NULL, NULL, 0, MPI_DATATYPE_NULL}
#define RECEIVE_NOTHING(P)
#define RECEIVE_NOTHING_VALUE SEND_NOTHING_VALUE

#define WITH_ALL(P)
#define WITH_ALL_VALUE 0, MPI_OP_NULL
#define WITH_ROOT(P) P(number, root)
#define WITH_ROOT_VALUE NUMBER_OF(root), MPI_OP_NULL
#define WITH_OP(P) P(op_handle, op)
#define WITH_OP_VALUE 0, OP_OF(op)
#define WITH_OP_ROOT(P) P(op_handle, op) P(number, root)
#define WITH_OP_ROOT_VALUE NUMBER_OF(root), OP_OF(op)

#define PARAMETERS(send, receive, with)                                                                                \
    SEND_##send(PARAMETER) RECEIVE_##receive(PARAMETER) WITH_##with(PARAMETER) comm_handle comm
#define ARGUMENTS(send, receive, with) SEND_##send(ARGUMENT) RECEIVE_##receive(ARGUMENT) WITH_##with(ARGUMENT) comm
/* The struct call with these parameters. */
#define CALL(lower, send, receive, with)                                                                               \
    {                                                                                                                  \
        COLLECTIVE_##lower, COMM_OF(comm), SEND_##send##_VALUE, RECEIVE_##receive##_VALUE, WITH_##with##_VALUE,        \
            FROM_FORTRAN                                                                                               \
    }

/* ---- constructors of communicators: the parameters between the old and the new communicator ---- */

#define CONSTRUCTORS(X)                                                                                                \
    X(Comm_dup, comm_dup, COMM_DUP)                                                                                    \
    X(Comm_dup_with_info, comm_dup_with_info, COMM_DUP_WITH_INFO)                                                      \
    X(Comm_split, comm_split, COMM_SPLIT)                                                                              \
    X(Comm_split_type, comm_split_type, COMM_SPLIT_TYPE)                                                               \
    X(Comm_create, comm_create, COMM_CREATE)                                                                           \
    X(Comm_create_group, comm_create_group, COMM_CREATE_GROUP)

/* Constructors with arguments that are logicals in Fortran. */
#define CONSTRUCTORS_WITH_LOGICALS(X)                                                                                  \
    X(Cart_create, cart_create, CART_CREATE)                                                                           \
    X(Cart_sub, cart_sub, CART_SUB)                                                                                    \
    X(Graph_create, graph_create, GRAPH_CREATE)                                                                        \
    X(Dist_graph_create, dist_graph_create, DIST_GRAPH_CREATE)                                                         \
    X(Dist_graph_create_adjacent, dist_graph_create_adjacent, DIST_GRAPH_CREATE_ADJACENT)                              \
    X(Intercomm_merge, intercomm_merge, INTERCOMM_MERGE)

#define BETWEEN_comm_dup(P)
#define BETWEEN_comm_dup_with_info(P) P(info_handle, info)
#define BETWEEN_comm_split(P) P(number, color) P(number, key)
#define BETWEEN_comm_split_type(P) P(number, type) P(number, key) P(info_handle, info)
#define BETWEEN_comm_create(P) P(group_handle, group)
#define BETWEEN_comm_create_group(P) P(group_handle, group) P(number, tag)
#define BETWEEN_cart_create(P) P(number, ndims) P(numbers, dims) P(numbers, periods) P(number, reorder)
#define BETWEEN_cart_sub(P) P(numbers, remain)
#define BETWEEN_graph_create(P) P(number, nnodes) P(numbers, index) P(numbers, edges) P(number, reorder)
#define BETWEEN_dist_graph_create(P)                                                                                   \
    P(number, n) P(numbers, sources) P(numbers, degrees) P(numbers, destinations) P(numbers, weights)                  \
    P(info_handle, info) P(number, reorder)
#define BETWEEN_dist_graph_create_adjacent(P)                                                                          \
    P(number, indegree) P(numbers, sources) P(numbers, source_weights) P(number, outdegree) P(numbers, destinations)   \
    P(numbers, destination_weights) P(info_handle, info) P(number, reorder)
#define BETWEEN_intercomm_merge(P) P(number, high)

#endif
