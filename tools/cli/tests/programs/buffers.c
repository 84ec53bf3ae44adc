/*
 * buffers.c: an MPI program whose buffers come from malloc, calloc and realloc, and which forks while it runs.
 *
 * Every rank checks every byte; a rank that finds a wrong byte ends the job.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (512 * 1024)
#define ROUNDS 6

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

static int rank, ranks;

static unsigned char expected(int from, int to, int round, int at)
{
    return (unsigned char)(from * 31 + to * 17 + round * 7 + at % 251);
}

static void fill(unsigned char *block, int to, int round, int bytes)
{
    for (int at = 0; at < bytes; at++)
        block[at] = expected(rank, to, round, at);
}

static int holds(const unsigned char *block, int from, int to, int round, int bytes)
{
    for (int at = 0; at < bytes; at++)
        if (block[at] != expected(from, to, round, at))
            return 0;
    return 1;
}

static void gather(int round, int blocking)
{
    unsigned char *send = malloc(BYTES), *receive = calloc(ranks, BYTES);
    fill(send, 0, round, BYTES);
    if (blocking) {
        MPI_Allgather(send, BYTES, MPI_BYTE, receive, BYTES, MPI_BYTE, MPI_COMM_WORLD);
    } else {
        MPI_Request request;
        MPI_Iallgather(send, BYTES, MPI_BYTE, receive, BYTES, MPI_BYTE, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    for (int from = 0; from < ranks; from++)
        CHECK(holds(receive + (size_t)from * BYTES, from, 0, round, BYTES));
    free(send);
    free(receive);
}

/* Blocks of different sizes; every rank can compute all sizes. */
static int bytes_of(int from, int to)
{
    return BYTES / 4 * (1 + (from + to) % 4) - from;
}

static void exchange(int round)
{
    int *counts = malloc(4 * ranks * sizeof *counts);
    int *places = counts + ranks, *from_counts = counts + 2 * ranks, *from_places = counts + 3 * ranks;
    int sent = 0, received = 0;
    for (int other = 0; other < ranks; other++) {
        counts[other] = bytes_of(rank, other);
        from_counts[other] = bytes_of(other, rank);
        places[other] = sent;
        from_places[other] = received;
        sent += counts[other];
        received += from_counts[other];
    }
    unsigned char *send = realloc(malloc(BYTES), sent), *receive = malloc(received);
    for (int other = 0; other < ranks; other++)
        fill(send + places[other], other, round, counts[other]);
    MPI_Alltoallv(send, counts, places, MPI_BYTE, receive, from_counts, from_places, MPI_BYTE, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; other++)
        CHECK(holds(receive + from_places[other], other, rank, round, from_counts[other]));
    free(counts);
    free(send);
    free(receive);
}

/* The child keeps the old contents, while the parent receives into the same addresses. */
static void fork_beside(int round)
{
    unsigned char *kept = malloc((size_t)BYTES * ranks), *send = malloc(BYTES);
    memset(kept, round, (size_t)BYTES * ranks);
    fill(send, 0, round, BYTES);
    int ready[2], status;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        char word;
        int wrong = read(ready[0], &word, 1) != 1;
        for (size_t at = 0; at < (size_t)BYTES * ranks; at++)
            wrong |= kept[at] != round;
        memset(kept, 0, (size_t)BYTES * ranks);
        _exit(wrong);
    }
    MPI_Allgather(send, BYTES, MPI_BYTE, kept, BYTES, MPI_BYTE, MPI_COMM_WORLD);
    CHECK(write(ready[1], "", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int from = 0; from < ranks; from++)
        CHECK(holds(kept + (size_t)from * BYTES, from, 0, round, BYTES));
    close(ready[0]);
    close(ready[1]);
    free(kept);
    free(send);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int round = 1; round <= ROUNDS; round++) {
        gather(round, round % 2);
        exchange(round);
        if (round % 3 == 0)
            fork_beside(round);
        CHECK(system("true") == 0);
    }
    MPI_Finalize();
}
