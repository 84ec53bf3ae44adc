/*
 * persistent.c: persistent collectives of the conformance program: started again and again, one by one and together,
 * among other requests; waited for and tested, on changed buffers, after their datatypes are gone, and freed.
 */
#include "conformance.h"

enum { COUNT = 3000, KINDS = 9 };

/* Buffers of ints for every kind of call. */
struct calls {
    int *send[KINDS], *receive[KINDS];
    int *counts, *places;
    MPI_Datatype type;
    MPI_Request requests[KINDS + 1];
    int message;
};

/* The data from `from` to `to` in a round. */
static int content(int kind, int from, int to, int at, int round)
{
    return value(from, at, (round * 31 + kind) * 101 + to);
}

/* Whether every rank sends the same data to all. */
static int to_all(int kind)
{
    return kind < 3;
}

static void make(struct calls *calls)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Info info = MPI_INFO_NULL;
    MPI_Request *request = calls->requests;
    int *counts = calls->counts = fresh((size_t)ranks * sizeof(int));
    int *places = calls->places = fresh((size_t)ranks * sizeof(int));
    MPI_Type_contiguous(1, MPI_INT, &calls->type);
    MPI_Type_commit(&calls->type);
    MPI_Datatype type = calls->type;
    for (int of = 0; of < ranks; of++) {
        counts[of] = COUNT;
        places[of] = of * COUNT;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        calls->send[kind] = fresh((size_t)COUNT * (size_t)ranks * sizeof(int));
        calls->receive[kind] = fresh((size_t)COUNT * (size_t)ranks * sizeof(int));
    }
    int **send = calls->send, **receive = calls->receive, root = ranks - 1, bad = 0;
    bad += PERSISTENT_INIT(Allgather)(send[0], COUNT, type, receive[0], COUNT, MPI_INT, comm, info, request++);
    bad +=
        PERSISTENT_INIT(Allgatherv)(send[1], COUNT, MPI_INT, receive[1], counts, places, type, comm, info, request++);
    bad += PERSISTENT_INIT(Bcast)(rank == root ? send[2] : receive[2], COUNT, type, root, comm, info, request++);
    bad += PERSISTENT_INIT(Alltoall)(send[3], COUNT, type, receive[3], COUNT, MPI_INT, comm, info, request++);
    bad += PERSISTENT_INIT(Alltoallv)(send[4], counts, places, MPI_INT, receive[4], counts, places, type, comm, info,
                                 request++);
    bad += PERSISTENT_INIT(Gather)(send[5], COUNT, type, receive[5], COUNT, MPI_INT, root, comm, info, request++);
    bad += PERSISTENT_INIT(Gatherv)(send[6], COUNT, MPI_INT, receive[6], counts, places, type, root, comm, info,
                                    request++);
    bad += PERSISTENT_INIT(Scatter)(send[7], COUNT, type, receive[7], COUNT, MPI_INT, root, comm, info, request++);
    bad += PERSISTENT_INIT(Scatterv)(send[8], counts, places, type, receive[8], COUNT, MPI_INT, root, comm, info,
                                     request++);
    CHECK(bad == 0);
    /* The datatype may be freed before the calls are started, which Open MPI 5.0 does not survive. The lists stay until
     * their requests are freed. */
    if (!native)
        MPI_Type_free(&calls->type);
    MPI_Recv_init(&calls->message, 1, MPI_INT, (rank + 1) % ranks, 77, comm, request);
}

static void fill(struct calls *calls, int round)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int at = 0; at < COUNT * ranks; at++) {
            calls->send[kind][at] = content(kind, rank, to_all(kind) ? 0 : at / COUNT, at % COUNT, round);
            calls->receive[kind][at] = -1;
        }
    /* A gather sends its first block to the root. */
    for (int kind = 5; kind < 7; kind++)
        for (int at = 0; at < COUNT; at++)
            calls->send[kind][at] = content(kind, rank, ranks - 1, at, round);
}

static int wrong(const struct calls *calls, int kind, int round)
{
    int bad = 0, root = ranks - 1, of_all = kind < 2 || kind == 3 || kind == 4 || (rank == root && kind < 7);
    if (kind == 2 && rank == root)
        return 0;
    for (int at = 0; at < COUNT * ranks; at++) {
        int from = kind == 2 || kind > 6 ? root : at / COUNT, to = to_all(kind) ? 0 : rank;
        int expected = content(kind, from, to, at % COUNT, round);
        if ((of_all && kind != 2) || ((kind == 2 || kind > 6) && at < COUNT))
            bad += calls->receive[kind][at] != expected;
        else
            bad += calls->receive[kind][at] != -1;
    }
    return bad;
}

/* Waits for all requests, by varying functions. */
static void complete(struct calls *calls, int round)
{
    int flag = 0, index, left = KINDS + 1, outcount, indices[KINDS + 1];
    MPI_Status statuses[KINDS + 1];
    switch (round % 4) {
    case 0:
        CHECK(MPI_Waitall(KINDS + 1, calls->requests, statuses) == MPI_SUCCESS);
        break;
    case 1:
        for (int i = 0; i < KINDS + 1; i++)
            CHECK(MPI_Waitany(KINDS + 1, calls->requests, &index, statuses) == MPI_SUCCESS && index != MPI_UNDEFINED);
        break;
    case 2:
        while (!flag)
            CHECK(MPI_Testall(KINDS + 1, calls->requests, &flag, statuses) == MPI_SUCCESS);
        break;
    default:
        for (; left > 0; left -= outcount)
            CHECK(MPI_Waitsome(KINDS + 1, calls->requests, &outcount, indices, statuses) == MPI_SUCCESS &&
                  outcount > 0);
    }
    for (int i = 0; i < KINDS + 1; i++)
        CHECK(calls->requests[i] != MPI_REQUEST_NULL);
}

void persistent_collectives(void)
{
    struct calls calls;
    make(&calls);
    for (int round = 0; round < 8; round++) {
        fill(&calls, round);
        if (round % 2 == 0) {
            CHECK(MPI_Startall(KINDS + 1, calls.requests) == MPI_SUCCESS);
        } else {
            for (int i = 0; i < KINDS + 1; i++)
                CHECK(MPI_Start(&calls.requests[i]) == MPI_SUCCESS);
        }
        MPI_Send(&round, 1, MPI_INT, (rank + ranks - 1) % ranks, 77, MPI_COMM_WORLD);
        complete(&calls, round);
        CHECK(calls.message == round);
        for (int kind = 0; kind < KINDS; kind++)
            CHECK(wrong(&calls, kind, round) == 0);
        /* Waits for inactive requests return at once. */
        int index;
        CHECK(MPI_Waitall(KINDS + 1, calls.requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
        CHECK(MPI_Waitany(KINDS + 1, calls.requests, &index, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
              index == MPI_UNDEFINED);
    }
    for (int i = 0; i < KINDS + 1; i++) {
        CHECK(MPI_Request_free(&calls.requests[i]) == MPI_SUCCESS);
        CHECK(calls.requests[i] == MPI_REQUEST_NULL);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        free(calls.send[kind]);
        free(calls.receive[kind]);
    }
    if (native)
        MPI_Type_free(&calls.type);
    free(calls.counts);
    free(calls.places);
}

/* MPI 4.1, 6.13: ranks may start the requests in different orders, with other collectives between them. */
void persistent_in_any_order(void)
{
    enum { REQUESTS = 4, INTS = 700 };
    MPI_Request requests[REQUESTS];
    int *send[REQUESTS], *receive[REQUESTS], sum, one = 1;
    for (int of = 0; of < REQUESTS; of++) {
        send[of] = fresh(INTS * sizeof(int));
        receive[of] = fresh(INTS * (size_t)ranks * sizeof(int));
        CHECK(PERSISTENT_INIT(Allgather)(send[of], INTS, MPI_INT, receive[of], INTS, MPI_INT, MPI_COMM_WORLD,
                                         MPI_INFO_NULL, &requests[of]) == MPI_SUCCESS);
    }
    for (int round = 0; round < 6; round++) {
        for (int of = 0; of < REQUESTS; of++)
            fill_with(send[of], INTS, rank, round * REQUESTS + of);
        for (int turn = 0; turn < REQUESTS; turn++) {
            CHECK(MPI_Start(&requests[(turn + rank) % REQUESTS]) == MPI_SUCCESS);
            if (turn == (rank + round) % REQUESTS)
                CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == ranks);
        }
        CHECK(MPI_Waitall(REQUESTS, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
        for (int of = 0; of < REQUESTS; of++)
            CHECK(wrong_in(receive[of], INTS, ranks, round * REQUESTS + of) == 0);
    }
    for (int of = 0; of < REQUESTS; of++) {
        if (of > 0) /* the first request is left to MPI_Finalize */
            MPI_Request_free(&requests[of]);
        free(send[of]);
        free(receive[of]);
    }
}
