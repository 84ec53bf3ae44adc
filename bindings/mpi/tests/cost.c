/*
 * cost.c: what passing through costs: run it natively and below the shim and compare.
 *
 * Prints nanoseconds per call on rank 0, the least of several rounds: an allreduce of 8 bytes on MPI_COMM_SELF, a
 * broadcast of nothing on MPI_COMM_WORLD, a wait for nothing, and a communicator made and freed.
 */
#include <mpi.h>
#include <stdio.h>

#define ROUNDS 10

static double reduce(int calls)
{
    double mine = 1, all;
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++)
        MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    return (MPI_Wtime() - began) / calls * 1e9;
}

/* All that the shim does to choose, and next to nothing that MPI does. */
static double broadcast_nothing(int calls)
{
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++)
        MPI_Bcast(NULL, 0, MPI_INT, 0, MPI_COMM_WORLD);
    return (MPI_Wtime() - began) / calls * 1e9;
}

static double wait_for_nothing(int calls)
{
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return (MPI_Wtime() - began) / calls * 1e9;
}

static double duplicate(int calls)
{
    double began = MPI_Wtime();
    for (int call = 0; call < calls; call++) {
        MPI_Comm made;
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        MPI_Comm_free(&made);
    }
    return (MPI_Wtime() - began) / calls * 1e9;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        double (*run)(int calls);
        int calls;
    } all[] = {{"allreduce_self_ns", reduce, 100000},
             {"broadcast_nothing_ns", broadcast_nothing, 100000},
             {"wait_ns", wait_for_nothing, 100000},
             {"dup_and_free_ns", duplicate, 100}};
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (unsigned what = 0; what < sizeof all / sizeof *all; what++) {
        double least = 1e30;
        for (int round = 0; round < ROUNDS; round++) {
            double took = all[what].run(all[what].calls);
            least = took < least ? took : least;
        }
        if (rank == 0)
            printf("%s %.1f\n", all[what].name, least);
    }
    MPI_Finalize();
    return 0;
}
