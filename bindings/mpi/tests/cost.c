/*
 * cost.c: what passing through costs: run it natively and below the shim and compare.
 *
 * Prints nanoseconds per call on rank 0, the least of several rounds: an allreduce of 8 bytes on MPI_COMM_SELF, a
 * broadcast of nothing on MPI_COMM_WORLD, a wait for nothing, a communicator made and freed; and the median of how much
 * longer the first broadcast of 1 MiB on a new communicator, which between hosts is offloaded, takes than the next.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 10
#define LARGE (1 << 20)
#define LARGE_MOST 50

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

static double large_broadcast(MPI_Comm comm)
{
    static char bytes[LARGE];
    MPI_Barrier(comm);
    double began = MPI_Wtime();
    MPI_Bcast(bytes, LARGE, MPI_BYTE, 0, comm);
    double took = MPI_Wtime() - began, slowest;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, comm);
    return slowest;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double first_large(int calls)
{
    double more[LARGE_MOST];
    for (int call = 0; call < calls; call++) {
        MPI_Comm made;
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        more[call] = large_broadcast(made);
        more[call] -= large_broadcast(made);
        MPI_Comm_free(&made);
    }
    qsort(more, (size_t)calls, sizeof *more, ascending);
    return more[calls / 2] * 1e9;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        double (*run)(int calls);
        int calls, rounds;
    } all[] = {{"allreduce_self_ns", reduce, 100000, ROUNDS},
             {"broadcast_nothing_ns", broadcast_nothing, 100000, ROUNDS},
             {"wait_ns", wait_for_nothing, 100000, ROUNDS},
             {"dup_and_free_ns", duplicate, 100, ROUNDS},
             {"first_large_ns", first_large, LARGE_MOST, 1}};
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (unsigned what = 0; what < sizeof all / sizeof *all; what++) {
        double least = 1e30;
        for (int round = 0; round < all[what].rounds; round++) {
            double took = all[what].run(all[what].calls);
            least = took < least ? took : least;
        }
        if (rank == 0)
            printf("%s %.1f\n", all[what].name, least);
    }
    MPI_Finalize();
    return 0;
}
