/* right: every rank prints its host and PASS */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, ranks, sum = 0;
    char host[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    gethostname(host, sizeof host);
    int mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const char *verdict = sum == ranks * (ranks + 1) / 2 ? "PASS" : "FAIL";
    printf("%s rank %d of %d\n%s as %s\n", verdict, rank, ranks, host, argv[0]);
    MPI_Finalize();
    return 0;
}
