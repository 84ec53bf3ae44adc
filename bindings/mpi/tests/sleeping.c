/*
 * sleeping.c: a rank that waits only for offloaded collectives leaves the processor to others.
 *
 * Run with the fake liboutboard and a long OUTBOARD_FAKE_DELAY_US. Processor time is compared with elapsed time, so the
 * speed of the machine does not matter. Prints TAP on rank 0.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank, ranks, bad, number;

static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Posts three collectives and waits for them in the given way; returns the fraction of the time on the processor. */
static double share_used(int form)
{
    int mine[3] = {rank, rank, rank}, *receive = malloc(3 * (size_t)ranks * sizeof(int)), indices[3], index, count;
    MPI_Request requests[3];
    MPI_Barrier(MPI_COMM_WORLD);
    double used = clock_s(CLOCK_THREAD_CPUTIME_ID), began = clock_s(CLOCK_MONOTONIC);
    for (int i = 0; form > 0 && i < 3; i++)
        MPI_Iallgather(&mine[i], 1, MPI_INT, receive + i * ranks, 1, MPI_INT, MPI_COMM_WORLD, &requests[i]);
    switch (form) {
    case 0:
        MPI_Allgather(mine, 1, MPI_INT, receive, 1, MPI_INT, MPI_COMM_WORLD);
        break;
    case 1:
        for (int i = 0; i < 3; i++)
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        break;
    case 2:
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        break;
    case 3:
        for (int i = 0; i < 3; i++)
            MPI_Waitany(3, requests, &index, MPI_STATUS_IGNORE);
        break;
    default:
        for (int left = 3; left > 0; left -= count)
            MPI_Waitsome(3, requests, &count, indices, MPI_STATUSES_IGNORE);
    }
    used = clock_s(CLOCK_THREAD_CPUTIME_ID) - used;
    began = clock_s(CLOCK_MONOTONIC) - began;
    free(receive);
    return used / began;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"MPI_Allgather", "MPI_Wait", "MPI_Waitall", "MPI_Waitany", "MPI_Waitsome"};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0)
        printf("1..5\n");
    for (int form = 0; form < 5; form++) {
        double mine = share_used(form), most;
        MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        bad += most > 0.1;
        if (rank == 0)
            printf("%s %d - %s sleeps (used %.3f of the time)\n", most > 0.1 ? "not ok" : "ok", ++number, names[form],
                   most);
    }
    MPI_Finalize();
    return bad != 0;
}
