/*
 * cost.c: the cost of calls that the shim passes through. Run the program natively and below the shim, and compare.
 *
 * Prints nanoseconds per call on rank 0, the least of several rounds: an allreduce of 8 bytes on MPI_COMM_SELF, and a
 * broadcast of nothing on MPI_COMM_WORLD.
 */
#include <mpi.h>
#include <stdio.h>

#define ROUNDS 10
#define CALLS 100000

static double reduce(int calls)
{
    double mine = 1, all;
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++)
        MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    return (MPI_Wtime() - began) / calls * 1e9;
}

/* The shim makes its full choice here, and MPI does next to nothing. */
static double broadcast_nothing(int calls)
{
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++)
        MPI_Bcast(NULL, 0, MPI_INT, 0, MPI_COMM_WORLD);
    return (MPI_Wtime() - began) / calls * 1e9;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        double (*run)(int calls);
    } all[] = {{"allreduce_self_ns", reduce}, {"broadcast_nothing_ns", broadcast_nothing}};
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (unsigned what = 0; what < sizeof all / sizeof *all; what++) {
        double least = 1e30;
        for (int round = 0; round < ROUNDS; round++) {
            double took = all[what].run(CALLS);
            least = took < least ? took : least;
        }
        if (rank == 0)
            printf("%s %.1f\n", all[what].name, least);
    }
    MPI_Finalize();
    return 0;
}
