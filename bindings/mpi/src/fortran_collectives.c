/*
 * fortran_collectives.c: the functions of collectives.c by their Fortran names; see fortran.c.
 */
#include "fortran.h"

/* Fortran's MPI_BOTTOM and MPI_IN_PLACE are variables of libmpi, known by their addresses. */
extern int mpi_fortran_bottom_ __attribute__((weak));
extern int mpi_fortran_in_place_ __attribute__((weak));

static void *buffer(char *address)
{
    if (address == (char *)&mpi_fortran_bottom_)
        return MPI_BOTTOM;
    return address == (char *)&mpi_fortran_in_place_ ? MPI_IN_PLACE : address;
}

static void answer_request(int outcome, MPI_Request made, MPI_Fint *request, MPI_Fint *ierr)
{
    if (outcome == MPI_SUCCESS)
        *request = PMPI_Request_c2f(made);
    answer(outcome, ierr);
}

#define UNPACK(...) __VA_ARGS__

#define PASS(collective, form, ...)                                                                                    \
    double began = PMPI_Wtime();                                                                                       \
    next(__VA_ARGS__);                                                                                                 \
    report_passed(collective, form, PMPI_Wtime() - began)

/* A form that makes a request: `offloads` takes the call, or the hidden function does. */
#define REQUEST_FORM(function, lower, upper, collective, form, offloads, parameters, arguments, ...)                   \
    FORTRAN_AS(function, lower, upper, parameters)                                                                     \
    {                                                                                                                  \
        HIDDEN_NAME(function);                                                                                         \
        const struct call call = {collective, PMPI_Comm_f2c(*comm), __VA_ARGS__, true};                                \
        MPI_Request made;                                                                                              \
        int outcome;                                                                                                   \
        if (offloads(&call, &made, &outcome)) {                                                                        \
            answer_request(outcome, made, request, ierr);                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        PASS(collective, form, UNPACK arguments);                                                                      \
    }

#define PERSISTENT_FORM(function, lower, upper, collective, parameters, arguments, ...)                                \
    REQUEST_FORM(function, lower, upper, collective, PERSISTENT, offload_persistent,                                   \
                 (UNPACK parameters, MPI_Fint * info, MPI_Fint * request, MPI_Fint * ierr),           \
                 (UNPACK arguments, info, request, ierr), __VA_ARGS__)

/* Open MPI 4.1 has the persistent forms as an extension. */
#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompi_##lower##_init_f, mpi_##lower##_init, MPI_##upper##_INIT, COLLECTIVE_##lower, __VA_ARGS__)
#else
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompix_##lower##_init_f, mpix_##lower##_init, MPIX_##upper##_INIT, COLLECTIVE_##lower, __VA_ARGS__)
#endif

/* The three forms; what comes after `arguments` as in collectives.c. */
#define COLLECTIVE(lower, upper, parameters, arguments, ...)                                                           \
    FORTRAN(lower, upper, (UNPACK parameters, MPI_Fint * ierr))                                       \
    {                                                                                                                  \
        HIDDEN(lower);                                                                                                 \
        const struct call call = {COLLECTIVE_##lower, PMPI_Comm_f2c(*comm), __VA_ARGS__, true};                        \
        int outcome;                                                                                                   \
        if (offload(&call, &outcome)) {                                                                                \
            answer(outcome, ierr);                                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
        PASS(COLLECTIVE_##lower, BLOCKING, UNPACK arguments, ierr);                                              \
    }                                                                                                                  \
    REQUEST_FORM(ompi_i##lower##_f, mpi_i##lower, MPI_I##upper, COLLECTIVE_##lower, NONBLOCKING, offload_nonblocking,  \
                 (UNPACK parameters, MPI_Fint * request, MPI_Fint * ierr),                            \
                 (UNPACK arguments, request, ierr), __VA_ARGS__)                                                 \
    PERSISTENT_OF(lower, upper, parameters, arguments, __VA_ARGS__)

#define EVEN(address, count, type) {buffer(address), NULL, NULL, *count, PMPI_Type_f2c(*type)}
#define UNEVEN(address, counts, displacements, type) {buffer(address), counts, displacements, 0, PMPI_Type_f2c(*type)}

COLLECTIVE(allgather, ALLGATHER,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcount,
            MPI_Fint *recvtype, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(allgatherv, ALLGATHERV,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcounts,
            MPI_Fint *displs, MPI_Fint *recvtype, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           UNEVEN(recvbuf, recvcounts, displs, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(bcast, BCAST, (char *address, MPI_Fint *count, MPI_Fint *type, MPI_Fint *root, MPI_Fint *comm),
           (address, count, type, root, comm), EVEN(address, count, type), EVEN(address, count, type), *root, MPI_OP_NULL)

COLLECTIVE(alltoall, ALLTOALL,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcount,
            MPI_Fint *recvtype, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(alltoallv, ALLTOALLV,
           (char *sendbuf, MPI_Fint *sendcounts, MPI_Fint *sdispls, MPI_Fint *sendtype, char *recvbuf,
            MPI_Fint *recvcounts, MPI_Fint *rdispls, MPI_Fint *recvtype, MPI_Fint *comm),
           (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm),
           UNEVEN(sendbuf, sendcounts, sdispls, sendtype), UNEVEN(recvbuf, recvcounts, rdispls, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(gather, GATHER,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcount,
            MPI_Fint *recvtype, MPI_Fint *root, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), *root, MPI_OP_NULL)

COLLECTIVE(gatherv, GATHERV,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcounts,
            MPI_Fint *displs, MPI_Fint *recvtype, MPI_Fint *root, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm),
           EVEN(sendbuf, sendcount, sendtype), UNEVEN(recvbuf, recvcounts, displs, recvtype), *root, MPI_OP_NULL)

COLLECTIVE(scatter, SCATTER,
           (char *sendbuf, MPI_Fint *sendcount, MPI_Fint *sendtype, char *recvbuf, MPI_Fint *recvcount,
            MPI_Fint *recvtype, MPI_Fint *root, MPI_Fint *comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), *root, MPI_OP_NULL)

COLLECTIVE(scatterv, SCATTERV,
           (char *sendbuf, MPI_Fint *sendcounts, MPI_Fint *displs, MPI_Fint *sendtype, char *recvbuf,
            MPI_Fint *recvcount, MPI_Fint *recvtype, MPI_Fint *root, MPI_Fint *comm),
           (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm),
           UNEVEN(sendbuf, sendcounts, displs, sendtype), EVEN(recvbuf, recvcount, recvtype), *root, MPI_OP_NULL)

#define NO_BUFFER {NULL, NULL, NULL, 0, MPI_DATATYPE_NULL}

COLLECTIVE(barrier, BARRIER, (MPI_Fint * comm), (comm), NO_BUFFER, NO_BUFFER, 0, MPI_OP_NULL)

COLLECTIVE(reduce, REDUCE,
           (char *sendbuf, char *recvbuf, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *root,
            MPI_Fint *comm),
           (sendbuf, recvbuf, count, type, op, root, comm), EVEN(sendbuf, count, type), EVEN(recvbuf, count, type),
           *root, PMPI_Op_f2c(*op))

COLLECTIVE(allreduce, ALLREDUCE,
           (char *sendbuf, char *recvbuf, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm),
           (sendbuf, recvbuf, count, type, op, comm), EVEN(sendbuf, count, type), EVEN(recvbuf, count, type), 0,
           PMPI_Op_f2c(*op))

COLLECTIVE(reduce_scatter, REDUCE_SCATTER,
           (char *sendbuf, char *recvbuf, MPI_Fint *recvcounts, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm),
           (sendbuf, recvbuf, recvcounts, type, op, comm), UNEVEN(sendbuf, NULL, NULL, type),
           UNEVEN(recvbuf, recvcounts, NULL, type), 0, PMPI_Op_f2c(*op))

COLLECTIVE(reduce_scatter_block, REDUCE_SCATTER_BLOCK,
           (char *sendbuf, char *recvbuf, MPI_Fint *recvcount, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm),
           (sendbuf, recvbuf, recvcount, type, op, comm), EVEN(sendbuf, recvcount, type),
           EVEN(recvbuf, recvcount, type), 0, PMPI_Op_f2c(*op))

COLLECTIVE(scan, SCAN,
           (char *sendbuf, char *recvbuf, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm),
           (sendbuf, recvbuf, count, type, op, comm), EVEN(sendbuf, count, type), EVEN(recvbuf, count, type), 0,
           PMPI_Op_f2c(*op))

COLLECTIVE(exscan, EXSCAN,
           (char *sendbuf, char *recvbuf, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op, MPI_Fint *comm),
           (sendbuf, recvbuf, count, type, op, comm), EVEN(sendbuf, count, type), EVEN(recvbuf, count, type), 0,
           PMPI_Op_f2c(*op))
