/*
 * right: with a long TMPDIR, a missing, read-only or full TMPDIR or HOME, no HOME at all, the program ends right, as
 * natively (offloaded or natively, with a sentence at most)
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000, CALLS = 20 };

int main(int argc, char **argv)
{
    int rank, ranks, bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *send = malloc(COUNT * sizeof *send), *receive = malloc((size_t)COUNT * ranks * sizeof *receive);
    for (int i = 0; i < COUNT; i++)
        send[i] = rank * COUNT + i;
    for (int call = 0; call < CALLS; call++)
        MPI_Allgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT * ranks; i++)
        bad += receive[i] != i;
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
