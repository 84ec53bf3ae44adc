/*
 * collectives.c: the collectives that the shim stands in for, by their C names: each blocking, nonblocking and, where this
 * Open MPI has it, persistent. Each offloads its call or passes it on and counts that.
 */
#include "shim.h"

/* Open MPI 5 has the names of MPI 4; 4.1 has them as an extension, where it was built with that. */
#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_NAME(Name) MPI_##Name##_init
#define PERSISTENT_HIDDEN(Name) PMPI_##Name##_init
#else
#include <mpi-ext.h>
#if defined(OMPI_HAVE_MPI_EXT_PCOLLREQ) && OMPI_HAVE_MPI_EXT_PCOLLREQ
#define PERSISTENT_NAME(Name) MPIX_##Name##_init
#define PERSISTENT_HIDDEN(Name) PMPIX_##Name##_init
#endif
#endif

#define UNPACK(...) __VA_ARGS__

#define PASS(collective, form, native)                                                                                 \
    double began = PMPI_Wtime();                                                                                       \
    outcome = native;                                                                                                  \
    report_passed(collective, form, PMPI_Wtime() - began);                                                             \
    return outcome

#ifdef PERSISTENT_NAME
#define PERSISTENT_FORM(Name, lower, parameters, arguments, ...)                                                       \
    int PERSISTENT_NAME(Name)(UNPACK parameters, MPI_Info info, MPI_Request * request)                  \
    {                                                                                                                  \
        const struct call call = {COLLECTIVE_##lower, comm, __VA_ARGS__, false};                                       \
        int outcome;                                                                                                   \
        if (offload_persistent(&call, request, &outcome))                                                              \
            return outcome;                                                                                            \
        PASS(COLLECTIVE_##lower, PERSISTENT, PERSISTENT_HIDDEN(Name)(UNPACK arguments, info, request));          \
    }
#else
#define PERSISTENT_FORM(Name, lower, parameters, arguments, ...)
#endif

/* What comes after `arguments` is the rest of the call: what is sent, what is received, root and operator. */
#define COLLECTIVE(Name, lower, parameters, arguments, ...)                                                            \
    int MPI_##Name(UNPACK parameters)                                                                 \
    {                                                                                                                  \
        const struct call call = {COLLECTIVE_##lower, comm, __VA_ARGS__, false};                                       \
        int outcome;                                                                                                   \
        if (offload(&call, &outcome))                                                                                  \
            return outcome;                                                                                            \
        PASS(COLLECTIVE_##lower, BLOCKING, PMPI_##Name(UNPACK arguments));                                       \
    }                                                                                                                  \
    int MPI_I##lower(UNPACK parameters, MPI_Request *request)                                           \
    {                                                                                                                  \
        const struct call call = {COLLECTIVE_##lower, comm, __VA_ARGS__, false};                                       \
        int outcome;                                                                                                   \
        if (offload_nonblocking(&call, request, &outcome))                                                             \
            return outcome;                                                                                            \
        PASS(COLLECTIVE_##lower, NONBLOCKING, PMPI_I##lower(UNPACK arguments, request));                         \
    }                                                                                                                  \
    PERSISTENT_FORM(Name, lower, parameters, arguments, __VA_ARGS__)

/* One block, or as many as there are ranks; blocks by rank. */
#define EVEN(buffer, count, type) {(void *)(buffer), NULL, NULL, count, type}
#define UNEVEN(buffer, counts, displacements, type) {(void *)(buffer), counts, displacements, 0, type}

COLLECTIVE(Allgather, allgather,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
            MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(Allgatherv, allgatherv,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
            const int displs[], MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           UNEVEN(recvbuf, recvcounts, displs, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(Bcast, bcast, (void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm), (buffer, count, datatype, root, comm),
           EVEN(buffer, count, datatype), EVEN(buffer, count, datatype), root, MPI_OP_NULL)

COLLECTIVE(Alltoall, alltoall,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
            MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(Alltoallv, alltoallv,
           (const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype, void *recvbuf,
            const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm),
           (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm),
           UNEVEN(sendbuf, sendcounts, sdispls, sendtype), UNEVEN(recvbuf, recvcounts, rdispls, recvtype), 0, MPI_OP_NULL)

COLLECTIVE(Gather, gather,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
            MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), root, MPI_OP_NULL)

COLLECTIVE(Gatherv, gatherv,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
            const int displs[], MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm),
           EVEN(sendbuf, sendcount, sendtype), UNEVEN(recvbuf, recvcounts, displs, recvtype), root, MPI_OP_NULL)

COLLECTIVE(Scatter, scatter,
           (const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
            MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm), EVEN(sendbuf, sendcount, sendtype),
           EVEN(recvbuf, recvcount, recvtype), root, MPI_OP_NULL)

COLLECTIVE(Scatterv, scatterv,
           (const void *sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype, void *recvbuf,
            int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),
           (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm),
           UNEVEN(sendbuf, sendcounts, displs, sendtype), EVEN(recvbuf, recvcount, recvtype), root, MPI_OP_NULL)

#define NO_BUFFER {NULL, NULL, NULL, 0, MPI_DATATYPE_NULL}

COLLECTIVE(Barrier, barrier, (MPI_Comm comm), (comm), NO_BUFFER, NO_BUFFER, 0, MPI_OP_NULL)

COLLECTIVE(Reduce, reduce,
           (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm),
           (sendbuf, recvbuf, count, datatype, op, root, comm), EVEN(sendbuf, count, datatype),
           EVEN(recvbuf, count, datatype), root, op)

COLLECTIVE(Allreduce, allreduce,
           (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, count, datatype, op, comm), EVEN(sendbuf, count, datatype),
           EVEN(recvbuf, count, datatype), 0, op)

COLLECTIVE(Reduce_scatter, reduce_scatter,
           (const void *sendbuf, void *recvbuf, const int recvcounts[], MPI_Datatype datatype, MPI_Op op,
            MPI_Comm comm),
           (sendbuf, recvbuf, recvcounts, datatype, op, comm), EVEN(sendbuf, 0, datatype),
           UNEVEN(recvbuf, recvcounts, NULL, datatype), 0, op)

COLLECTIVE(Reduce_scatter_block, reduce_scatter_block,
           (const void *sendbuf, void *recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, recvcount, datatype, op, comm), EVEN(sendbuf, recvcount, datatype),
           EVEN(recvbuf, recvcount, datatype), 0, op)

COLLECTIVE(Scan, scan,
           (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, count, datatype, op, comm), EVEN(sendbuf, count, datatype),
           EVEN(recvbuf, count, datatype), 0, op)

COLLECTIVE(Exscan, exscan,
           (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
           (sendbuf, recvbuf, count, datatype, op, comm), EVEN(sendbuf, count, datatype),
           EVEN(recvbuf, count, datatype), 0, op)
