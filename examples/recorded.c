/*
 * recorded.c: three patterns of communication, each recorded once and called repeatedly, beside its plain MPI twin.
 *
 *   mpicc -O2 -I../crates/client/include recorded.c -L../target/release -Wl,-rpath,$PWD/../target/release \
 *       -loutboard -o recorded
 *   mpirun -n 8 ./recorded [bytes] [rounds]
 *
 *   ring      rank 0's buffer goes from rank to rank, as in the broadcast of HPL
 *   alltoall  a block of every rank for every other, destinations scattered: rank r begins with r + 1
 *   stencil   a box of ranks in three dimensions; each rank exchanges its six faces with its
 *             neighbours, round the sides of the box
 *
 * Every round computes new contents, moves them by both twins, and compares the received bytes. The program prints the
 * median times of a round by recorded group and by MPI; they are meaningful only on an idle machine.
 */
#include <mpi.h>
#include <outboard.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 7, NEIGHBOURS = 6 };

static int rank, ranks;
static outboard_group *group;

/* Ends the job if a call of Outboard failed. */
static void check(int code, const char *what)
{
    if (code == OUTBOARD_OK)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, outboard_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char *memory(size_t bytes)
{
    unsigned char *start = malloc(bytes > 0 ? bytes : 1);
    if (start == NULL) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return start;
}

static void fill(unsigned char *at, size_t bytes, int round)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(31 * i + 101 * (size_t)rank + 17 * (size_t)round);
}

/* A pattern: its buffers, the function that records it, and its MPI twin. */
struct pattern {
    const char *name;
    size_t send_bytes, receive_bytes;
    /* Whether one buffer serves for sending and receiving, as in the ring. */
    int in_place;
    void (*record)(outboard_recorder *, unsigned char *send, unsigned char *receive, size_t bytes);
    void (*run_by_mpi)(unsigned char *send, unsigned char *receive, size_t bytes);
};

static void record_ring(outboard_recorder *recorder, unsigned char *send, unsigned char *receive, size_t bytes)
{
    (void)send;
    if (rank > 0) {
        check(outboard_record_receive(recorder, (uint32_t)rank - 1, TAG, receive, bytes), "record a receive");
        check(outboard_record_barrier(recorder), "record a barrier");
    }
    if (rank + 1 < ranks)
        check(outboard_record_send(recorder, (uint32_t)rank + 1, TAG, receive, bytes), "record a send");
}

static void mpi_ring(unsigned char *send, unsigned char *receive, size_t bytes)
{
    (void)send;
    if (rank > 0)
        MPI_Recv(receive, (int)bytes, MPI_BYTE, rank - 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank + 1 < ranks)
        MPI_Send(receive, (int)bytes, MPI_BYTE, rank + 1, TAG, MPI_COMM_WORLD);
}

static void record_alltoall(outboard_recorder *recorder, unsigned char *send, unsigned char *receive, size_t bytes)
{
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        check(outboard_record_receive(recorder, (uint32_t)from, TAG, receive + (size_t)from * bytes, bytes),
              "record a receive");
        check(outboard_record_send(recorder, (uint32_t)to, TAG, send + (size_t)to * bytes, bytes), "record a send");
    }
    check(outboard_record_copy(recorder, send + (size_t)rank * bytes, receive + (size_t)rank * bytes, bytes),
          "record a copy");
}

static void mpi_alltoall(unsigned char *send, unsigned char *receive, size_t bytes)
{
    MPI_Request *requests = (MPI_Request *)memory(2 * (size_t)ranks * sizeof *requests);
    int count = 0;
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        MPI_Irecv(receive + (size_t)from * bytes, (int)bytes, MPI_BYTE, from, TAG, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(send + (size_t)to * bytes, (int)bytes, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &requests[count++]);
    }
    memcpy(receive + (size_t)rank * bytes, send + (size_t)rank * bytes, bytes);
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    free(requests);
}

/* Finds the neighbours in a box of ranks as cubic as possible, each direction beside its opposite. Ranks on opposite
 * sides of the box are neighbours. */
static void neighbours(int peers[NEIGHBOURS])
{
    static int known, found[NEIGHBOURS];
    if (!known) {
        int sides[3] = {0, 0, 0}, periods[3] = {1, 1, 1};
        MPI_Comm box;
        MPI_Dims_create(ranks, 3, sides);
        MPI_Cart_create(MPI_COMM_WORLD, 3, sides, periods, 0, &box);
        for (int axis = 0; axis < 3; axis++)
            MPI_Cart_shift(box, axis, 1, &found[2 * axis], &found[2 * axis + 1]);
        MPI_Comm_free(&box);
        known = 1;
    }
    memcpy(peers, found, sizeof found);
}

/* A face's tag is its direction, so that two ranks that are neighbours in two directions do not mix up their faces. */
static void record_stencil(outboard_recorder *recorder, unsigned char *send, unsigned char *receive, size_t bytes)
{
    int peers[NEIGHBOURS];
    neighbours(peers);
    for (int face = 0; face < NEIGHBOURS; face++) {
        uint32_t peer = (uint32_t)peers[face], out = (uint32_t)face, in = (uint32_t)(face ^ 1);
        check(outboard_record_receive(recorder, peer, in, receive + (size_t)face * bytes, bytes), "record a receive");
        check(outboard_record_send(recorder, peer, out, send + (size_t)face * bytes, bytes), "record a send");
    }
}

static void mpi_stencil(unsigned char *send, unsigned char *receive, size_t bytes)
{
    int peers[NEIGHBOURS], count = 0;
    MPI_Request requests[2 * NEIGHBOURS];
    neighbours(peers);
    for (int face = 0; face < NEIGHBOURS; face++) {
        MPI_Irecv(receive + (size_t)face * bytes, (int)bytes, MPI_BYTE, peers[face], face ^ 1, MPI_COMM_WORLD,
                  &requests[count++]);
        MPI_Isend(send + (size_t)face * bytes, (int)bytes, MPI_BYTE, peers[face], face, MPI_COMM_WORLD,
                  &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* The median over the rounds of the slowest rank's time. */
static double median(double *seconds, int rounds)
{
    double slowest;
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    MPI_Reduce(&seconds[rounds / 2], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return slowest;
}

static void run(const struct pattern *pattern, size_t bytes, int rounds)
{
    unsigned char *send = memory(pattern->send_bytes), *receive = memory(pattern->receive_bytes);
    unsigned char *expected = memory(pattern->receive_bytes);
    double *recorded_times = (double *)memory(2 * (size_t)rounds * sizeof *recorded_times);
    double *mpi_times = recorded_times + rounds;
    outboard_recorder *recorder;
    outboard_recorded *recorded;

    check(outboard_record_begin(group, &recorder), "begin to record");
    pattern->record(recorder, send, receive, bytes);
    check(outboard_record_end(recorder, &recorded), "end the recording");
    for (int round = 0; round < rounds; round++) {
        outboard_request *request;
        fill(send, pattern->send_bytes, round);
        memset(receive, 0, pattern->receive_bytes);
        memset(expected, 0, pattern->receive_bytes);
        if (pattern->in_place && rank == 0) {
            fill(receive, pattern->receive_bytes, round);
            fill(expected, pattern->receive_bytes, round);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        check(outboard_recorded_call(recorded, &request), "call the recording");
        /* A program computes here. */
        check(outboard_wait(request, -1, NULL), "wait for the recording");
        check(outboard_request_free(request), "free the request");
        recorded_times[round] = MPI_Wtime() - start;
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        pattern->run_by_mpi(send, expected, bytes);
        mpi_times[round] = MPI_Wtime() - start;
        if (memcmp(receive, expected, pattern->receive_bytes) != 0) {
            fprintf(stderr, "rank %d: %s: other bytes than by MPI in round %d\n", rank, pattern->name, round);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    double recorded_median = median(recorded_times, rounds), mpi_median = median(mpi_times, rounds);
    if (rank == 0)
        printf("%-8s %9zu bytes  recorded %10.1f us  MPI %10.1f us\n", pattern->name, bytes,
               recorded_median * 1e6, mpi_median * 1e6);
    check(outboard_recorded_free(recorded), "free the recording");
    free(recorded_times);
    free(expected);
    free(receive);
    free(send);
}

int main(int argc, char **argv)
{
    outboard_context *context;
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 65536;
    int rounds = argc > 2 ? atoi(argv[2]) : 20;
    uint32_t here, all;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rounds < 1 || bytes > 1u << 30) {
        if (rank == 0)
            fprintf(stderr, "usage: recorded [bytes, at most 2^30] [rounds, at least 1]\n");
        MPI_Finalize();
        return 2;
    }
    check(outboard_init(&context, &group), "find the service process and the other ranks");
    check(outboard_group_rank(group, &here), "ask for the rank");
    check(outboard_group_size(group, &all), "ask for the ranks");
    if ((int)here != rank || (int)all != ranks) {
        fprintf(stderr, "rank %d of %d is rank %u of %u to Outboard\n", rank, ranks, here, all);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const size_t every = (size_t)ranks * bytes, faces = NEIGHBOURS * bytes;
    const struct pattern patterns[] = {
        {"ring", 0, bytes, 1, record_ring, mpi_ring},
        {"alltoall", every, every, 0, record_alltoall, mpi_alltoall},
        {"stencil", faces, faces, 0, record_stencil, mpi_stencil},
    };
    for (size_t at = 0; at < sizeof patterns / sizeof *patterns; at++)
        run(&patterns[at], bytes, rounds);
    check(outboard_group_destroy(group), "destroy the group");
    check(outboard_detach(context), "detach");
    MPI_Finalize();
    return 0;
}
