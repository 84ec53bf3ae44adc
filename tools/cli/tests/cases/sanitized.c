/* right: a program built with -fsanitize=address runs, every byte right (build: mpicc -fsanitize=address) */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000, CALLS = 10 };

int main(int argc, char **argv)
{
    int rank, ranks, bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *send = malloc(COUNT * sizeof *send), *receive = malloc((size_t)COUNT * ranks * sizeof *receive);
    for (int i = 0; i < COUNT; i++)
        send[i] = rank * COUNT + i;
    for (int call = 0; call < CALLS; call++) {
        MPI_Request request;
        MPI_Iallgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < COUNT * ranks; i++)
        bad += receive[i] != i;
    free(send);
    free(receive);
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    fflush(stdout);
    MPI_Finalize();
    return bad != 0;
}
