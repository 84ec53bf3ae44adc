/* right: rank 0 posts 3000 broadcasts and then sends the message on which the other ranks depend (MPI 4.1, 6.12) */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 3000, BYTES = 8192 };

static unsigned char value(long at)
{
    return (unsigned char)(at * 7 + at / BYTES);
}

int main(int argc, char **argv)
{
    int rank, ranks, go = 0, bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Request *requests = malloc(CALLS * sizeof *requests);
    unsigned char *bytes = calloc(CALLS, BYTES);
    for (long at = 0; rank == 0 && at < (long)CALLS * BYTES; at++)
        bytes[at] = value(at);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0)
        MPI_Recv(&go, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int call = 0; call < CALLS; call++)
        MPI_Ibcast(bytes + (long)call * BYTES, BYTES, MPI_BYTE, 0, MPI_COMM_WORLD, &requests[call]);
    for (int to = 1; rank == 0 && to < ranks; to++)
        MPI_Send(&to, 1, MPI_INT, to, 5, MPI_COMM_WORLD);
    MPI_Waitall(CALLS, requests, MPI_STATUSES_IGNORE);
    for (long at = 0; at < (long)CALLS * BYTES; at++)
        bad += bytes[at] != value(at);
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
