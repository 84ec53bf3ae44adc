/*
 * right: SIGUSR1 to the launcher reaches every rank, as below mpirun (checkpoint signals of batch systems), and the job
 * goes on to its end, exit 0
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile int received;

static void handle(int number)
{
    (void)number;
    received++;
}

int main(int argc, char **argv)
{
    signal(SIGUSR1, handle);
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    printf("up %d\n", rank);
    fflush(stdout);
    for (int i = 0; i < 300 && !received; i++)
        usleep(100000);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("%s rank %d of %d\n", received ? "PASS" : "FAIL", rank, ranks);
    MPI_Finalize();
    return 0;
}
