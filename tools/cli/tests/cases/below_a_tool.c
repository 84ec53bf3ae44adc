/* right: every byte, below a tool that wraps one function of a pair */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define BCAST_INIT MPI_Bcast_init
#else
#include <mpi-ext.h>
#define BCAST_INIT MPIX_Bcast_init
#endif

enum { COUNT = 20000 };

int main(int argc, char **argv)
{
    int rank, ranks, bad = 0, flag = 0;
    MPI_Comm comm;
    MPI_Request requests[2];
    int *memory;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Alloc_mem(COUNT * (int)sizeof(int), MPI_INFO_NULL, &memory);
    BCAST_INIT(memory, COUNT, MPI_INT, 0, comm, MPI_INFO_NULL, &requests[0]);
    for (int turn = 0; turn < 3; turn++) {
        for (int at = 0; at < COUNT; at++)
            memory[at] = rank == 0 ? at + turn : -1;
        MPI_Start(&requests[0]);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        for (int at = 0; at < COUNT; at++)
            bad += memory[at] != at + turn;
    }
    MPI_Request_free(&requests[0]);
    int mine = rank, sum = -1;
    MPI_Iallreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm, &requests[0]);
    MPI_Ibarrier(comm, &requests[1]);
    while (!flag)
        MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
    bad += sum != ranks * (ranks - 1) / 2;
    MPI_Free_mem(memory);
    MPI_Comm_free(&comm);
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
