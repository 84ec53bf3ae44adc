/*
 * interposed.h: the collectives and the constructors of communicators that the shim interposes, each described once.
 *
 * A parameter is written P(type, name), so that one list gives the declarations and the names of the arguments. MPI 4
 * gives each function with counts a second form, MPI_NAME_c, with wider counts: P then declares the wider type.
 */
#ifndef OUTBOARD_MPI_INTERPOSED_H
#define OUTBOARD_MPI_INTERPOSED_H

#include "mpi.h"
#include "names.h"

typedef const void *input;
typedef void *output;
typedef int single_count;
typedef const int *count_list, *displacement_list;
typedef const MPI_Datatype *type_list, *type_list_c;
typedef const MPI_Aint *address_list, *address_list_c;
typedef MPI_Count single_count_c;
typedef const MPI_Count *count_list_c;
typedef const MPI_Aint *displacement_list_c;
/* Types that are equal in both forms. */
typedef input input_c;
typedef output output_c;
typedef int int_value, int_value_c;
typedef const int *int_list;
typedef MPI_Datatype type_handle, type_handle_c;
typedef MPI_Op op_handle, op_handle_c;

#define PARAMETER(type, name) type name,
#define PARAMETER_C(type, name) type##_c name,
#define ARGUMENT(type, name) name,
#define UNWRAP(...) __VA_ARGS__

/* ---- collectives: the send buffer, the receive buffer, and the rest, as COLLECTIVES in shim.h names them ---- */

/* One block, or one equal block for each rank. */
#define SEND_EVEN(P) P(input, sendbuf) P(single_count, sendcount) P(type_handle, sendtype)
#define SEND_EVEN_VALUE .send = {(void *)sendbuf, NULL, NULL, sendcount, sendtype, WIDE, WIDE, NULL}
#define RECEIVE_EVEN(P) P(output, recvbuf) P(single_count, recvcount) P(type_handle, recvtype)
#define RECEIVE_EVEN_VALUE .receive = {recvbuf, NULL, NULL, recvcount, recvtype, WIDE, WIDE, NULL}
/* Blocks of different sizes, by rank. */
#define SEND_UNEVEN(P)                                                                                                 \
    P(input, sendbuf) P(count_list, sendcounts) P(displacement_list, sdispls) P(type_handle, sendtype)
#define SEND_UNEVEN_VALUE .send = {(void *)sendbuf, sendcounts, sdispls, 0, sendtype, WIDE, WIDE, NULL}
#define RECEIVE_UNEVEN(P)                                                                                              \
    P(output, recvbuf) P(count_list, recvcounts) P(displacement_list, rdispls) P(type_handle, recvtype)
#define RECEIVE_UNEVEN_VALUE .receive = {recvbuf, recvcounts, rdispls, 0, recvtype, WIDE, WIDE, NULL}
/* Blocks of different sizes and datatypes, by rank. Displacements count bytes; for neighbours they are MPI_Aint. */
#define SEND_TYPED(P)                                                                                                  \
    P(input, sendbuf) P(count_list, sendcounts) P(displacement_list, sdispls) P(type_list, sendtypes)
#define SEND_TYPED_VALUE .send = {(void *)sendbuf, sendcounts, sdispls, 0, MPI_BYTE, WIDE, WIDE, sendtypes}
#define RECEIVE_TYPED(P)                                                                                               \
    P(output, recvbuf) P(count_list, recvcounts) P(displacement_list, rdispls) P(type_list, recvtypes)
#define RECEIVE_TYPED_VALUE .receive = {recvbuf, recvcounts, rdispls, 0, MPI_BYTE, WIDE, WIDE, recvtypes}
#define SEND_TYPED_AINT(P)                                                                                             \
    P(input, sendbuf) P(count_list, sendcounts) P(address_list, sdispls) P(type_list, sendtypes)
#define SEND_TYPED_AINT_VALUE .send = {(void *)sendbuf, sendcounts, sdispls, 0, MPI_BYTE, WIDE, true, sendtypes}
#define RECEIVE_TYPED_AINT(P)                                                                                          \
    P(output, recvbuf) P(count_list, recvcounts) P(address_list, rdispls) P(type_list, recvtypes)
#define RECEIVE_TYPED_AINT_VALUE .receive = {recvbuf, recvcounts, rdispls, 0, MPI_BYTE, WIDE, true, recvtypes}
/* A vector to reduce, with the count and datatype of the receive buffer. */
#define SEND_VECTOR(P) P(input, sendbuf)
#define SEND_VECTOR_VALUE .send = {(void *)sendbuf, NULL, NULL, 0, MPI_DATATYPE_NULL, WIDE, WIDE, NULL}
/* The elements of a vector that the list gives to this rank. */
#define RECEIVE_PART(P) P(output, recvbuf) P(count_list, recvcounts) P(type_handle, recvtype)
#define RECEIVE_PART_VALUE .receive = {recvbuf, recvcounts, NULL, 0, recvtype, WIDE, WIDE, NULL}
#define SEND_NOTHING(P)
#define SEND_NOTHING_VALUE .send = {.type = MPI_DATATYPE_NULL}
#define RECEIVE_NOTHING(P)
#define RECEIVE_NOTHING_VALUE .receive = {.type = MPI_DATATYPE_NULL}

#define WITH_ALL(P)
#define WITH_ALL_VALUE .op = MPI_OP_NULL
#define WITH_ROOT(P) P(int_value, root)
#define WITH_ROOT_VALUE .root = root, .op = MPI_OP_NULL
#define WITH_OP(P) P(op_handle, op)
#define WITH_OP_VALUE .op = op
#define WITH_OP_ROOT(P) P(op_handle, op) P(int_value, root)
#define WITH_OP_ROOT_VALUE .root = root, .op = op

/* `P` is PARAMETER or PARAMETER_C. */
#define PARAMETERS(P, send, receive, with) SEND_##send(P) RECEIVE_##receive(P) WITH_##with(P) MPI_Comm comm
#define ARGUMENTS(send, receive, with) SEND_##send(ARGUMENT) RECEIVE_##receive(ARGUMENT) WITH_##with(ARGUMENT) comm
/* The struct call with these parameters. */
#define CALL(lower, send, receive, with)                                                                               \
    {                                                                                                                  \
        .collective = COLLECTIVE_##lower, .comm = comm, SEND_##send##_VALUE, RECEIVE_##receive##_VALUE,                \
        WITH_##with##_VALUE                                                                                            \
    }

/* ---- constructors of communicators: the parameters between the old and the new communicator ---- */

#define BETWEEN_Comm_dup(P)
#define BETWEEN_Comm_dup_with_info(P) P(MPI_Info, info)
#define BETWEEN_Comm_split(P) P(int_value, color) P(int_value, key)
#define BETWEEN_Comm_split_type(P) P(int_value, type) P(int_value, key) P(MPI_Info, info)
#define BETWEEN_Comm_create(P) P(MPI_Group, group)
#define BETWEEN_Comm_create_group(P) P(MPI_Group, group) P(int_value, tag)
#define BETWEEN_Cart_create(P) P(int_value, ndims) P(int_list, dims) P(int_list, periods) P(int_value, reorder)
#define BETWEEN_Cart_sub(P) P(int_list, remain)
#define BETWEEN_Graph_create(P) P(int_value, nnodes) P(int_list, index) P(int_list, edges) P(int_value, reorder)
#define BETWEEN_Dist_graph_create(P)                                                                                   \
    P(int_value, n) P(int_list, sources) P(int_list, degrees) P(int_list, destinations) P(int_list, weights)           \
    P(MPI_Info, info) P(int_value, reorder)
#define BETWEEN_Dist_graph_create_adjacent(P)                                                                          \
    P(int_value, indegree) P(int_list, sources) P(int_list, source_weights) P(int_value, outdegree)                    \
    P(int_list, destinations) P(int_list, destination_weights) P(MPI_Info, info) P(int_value, reorder)
#define BETWEEN_Intercomm_merge(P) P(int_value, high)

#endif
