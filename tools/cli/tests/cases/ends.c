/*
 * right: what the launcher returns is what mpirun returns: exit(3), _exit(4) before and after MPI_Finalize,
 * MPI_Abort(7), SIGSEGV, SIGKILL, abort(), and 0; soon, and with the program's own words; argv: how
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 60000, CALLS = 50 };

static const char *how;

static int is(const char *word)
{
    return strcmp(how, word) == 0;
}

static void end(void)
{
    if (is("exit"))
        exit(3);
    if (is("_exit"))
        _exit(4);
    if (is("mabort"))
        MPI_Abort(MPI_COMM_WORLD, 7);
    if (is("segv"))
        raise(SIGSEGV);
    if (is("kill"))
        raise(SIGKILL);
    if (is("abort"))
        abort();
    if (is("exit0"))
        exit(0);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    how = argc > 1 ? argv[1] : "ok";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *send = calloc(COUNT, sizeof *send), *receive = calloc((size_t)COUNT * ranks, sizeof *receive);
    MPI_Allgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD);
    printf("rank %d was here\n", rank);
    fflush(stdout);
    int last = rank == ranks - 1;
    if (is("finalize-exit")) {
        MPI_Finalize();
        exit(last ? 5 : 0);
    }
    if (is("inflight-exit")) {
        MPI_Request request;
        MPI_Iallgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD, &request);
        if (last) {
            usleep(300000);
            _exit(6);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (last)
        end();
    if (!is("exit0"))
        for (int call = 0; call < CALLS; call++)
            MPI_Allgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD);
    if (is("ok"))
        MPI_Finalize();
    return 0;
}
