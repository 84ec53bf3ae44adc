/*
 * right: a symbol of the library that the user preloads is there in every rank (build user_library.c as libuser.so; run
 * with LD_PRELOAD=.../libuser.so)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int found = dlsym(RTLD_DEFAULT, "user_was_here") != NULL;
    printf("%s rank %d of %d\n", found ? "PASS" : "FAIL", rank, ranks);
    MPI_Finalize();
    return !found;
}
