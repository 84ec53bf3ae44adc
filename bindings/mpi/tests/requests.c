/*
 * requests.c: requests of the conformance program: by every MPI_Wait and MPI_Test, alone and mixed with native ones,
 * and freed in flight.
 */
#include "conformance.h"

#define CALLS 6

struct flight {
    int *send[CALLS], *receive[CALLS];
    MPI_Request requests[2 * CALLS]; /* ours at even places, native ones at odd */
    int token[CALLS], messages[CALLS];
};

static void post_all(struct flight *flight, int mixed)
{
    for (int call = 0; call < CALLS; call++) {
        int count = 100 + call;
        flight->send[call] = fresh((size_t)count * sizeof(int));
        flight->receive[call] = fresh((size_t)count * (size_t)ranks * sizeof(int));
        fill_with(flight->send[call], count, rank, call);
        MPI_Iallgather(flight->send[call], count, MPI_INT, flight->receive[call], count, MPI_INT, MPI_COMM_WORLD,
                       &flight->requests[2 * call]);
        flight->requests[2 * call + 1] = MPI_REQUEST_NULL;
        if (mixed)
            MPI_Irecv(&flight->messages[call], 1, MPI_INT, (rank + ranks - 1) % ranks, call, MPI_COMM_WORLD,
                      &flight->requests[2 * call + 1]);
    }
    for (int call = 0; mixed && call < CALLS; call++) {
        flight->token[call] = rank * 100 + call;
        MPI_Send(&flight->token[call], 1, MPI_INT, (rank + 1) % ranks, call, MPI_COMM_WORLD);
    }
}

static void check_all(struct flight *flight, int mixed)
{
    for (int call = 0; call < CALLS; call++) {
        CHECK(flight->requests[2 * call] == MPI_REQUEST_NULL && flight->requests[2 * call + 1] == MPI_REQUEST_NULL);
        CHECK(wrong_in(flight->receive[call], 100 + call, ranks, call) == 0);
        if (mixed)
            CHECK(flight->messages[call] == (rank + ranks - 1) % ranks * 100 + call);
        free(flight->send[call]);
        free(flight->receive[call]);
    }
}

static void waitall(int mixed)
{
    struct flight flight;
    MPI_Status statuses[2 * CALLS];
    post_all(&flight, mixed);
    CHECK(MPI_Waitall(2 * CALLS, flight.requests, statuses) == MPI_SUCCESS);
    for (int call = 0; call < CALLS; call++) {
        int cancelled = 1;
        MPI_Test_cancelled(&statuses[2 * call], &cancelled);
        CHECK(!cancelled);
    }
    check_all(&flight, mixed);
}

static void waitany(int mixed)
{
    struct flight flight;
    int seen[2 * CALLS] = {0}, index;
    MPI_Status status;
    post_all(&flight, mixed);
    for (int i = 0; i < (mixed ? 2 * CALLS : CALLS); i++) {
        CHECK(MPI_Waitany(2 * CALLS, flight.requests, &index, &status) == MPI_SUCCESS);
        CHECK(index >= 0 && index < 2 * CALLS && !seen[index]);
        seen[index] = 1;
    }
    CHECK(MPI_Waitany(2 * CALLS, flight.requests, &index, &status) == MPI_SUCCESS && index == MPI_UNDEFINED);
    check_all(&flight, mixed);
}

static void some(int mixed, int waiting)
{
    struct flight flight;
    int indices[2 * CALLS], left = mixed ? 2 * CALLS : CALLS, outcount;
    MPI_Status statuses[2 * CALLS];
    post_all(&flight, mixed);
    while (left > 0) {
        int outcome = waiting ? MPI_Waitsome(2 * CALLS, flight.requests, &outcount, indices, statuses)
                              : MPI_Testsome(2 * CALLS, flight.requests, &outcount, indices, statuses);
        CHECK(outcome == MPI_SUCCESS && outcount != MPI_UNDEFINED && (!waiting || outcount > 0));
        if (outcount == MPI_UNDEFINED)
            break;
        left -= outcount;
    }
    CHECK(left == 0);
    check_all(&flight, mixed);
}

static void testing(int mixed, int form)
{
    struct flight flight;
    int flag, index, left = mixed ? 2 * CALLS : CALLS;
    MPI_Status statuses[2 * CALLS];
    post_all(&flight, mixed);
    for (flag = 0; form == 0 && !flag;)
        CHECK(MPI_Testall(2 * CALLS, flight.requests, &flag, statuses) == MPI_SUCCESS);
    while (form == 1 && left > 0) {
        CHECK(MPI_Testany(2 * CALLS, flight.requests, &index, &flag, statuses) == MPI_SUCCESS);
        left -= flag && index != MPI_UNDEFINED;
    }
    for (int i = 0; form == 2 && i < 2 * CALLS; i++)
        for (flag = 0; !flag;)
            CHECK(MPI_Test(&flight.requests[i], &flag, statuses) == MPI_SUCCESS);
    for (int i = 0; form == 3 && i < 2 * CALLS; i++) {
        for (flag = 0; !flag;)
            CHECK(MPI_Request_get_status(flight.requests[i], &flag, statuses) == MPI_SUCCESS);
        CHECK(MPI_Wait(&flight.requests[i], MPI_STATUS_IGNORE) == MPI_SUCCESS);
    }
    check_all(&flight, mixed);
}

void request_forms(void)
{
    for (int mixed = 0; mixed < 2; mixed++) {
        waitall(mixed);
        waitany(mixed);
        some(mixed, 0);
        some(mixed, 1);
        for (int form = 0; form < 4; form++)
            testing(mixed, form);
    }
}

/* A request freed in flight ends by itself. Its data has arrived when a later collective has ended. */
void freed_early(void)
{
    enum { COUNT = 5000 };
    if (native)
        return;
    int *send = fresh(COUNT * sizeof(int)), *receive = fresh((size_t)COUNT * (size_t)ranks * sizeof(int));
    int *spread = fresh((size_t)COUNT * (size_t)ranks * 2 * sizeof(int));
    MPI_Datatype gaps;
    MPI_Request request;
    fill_with(send, COUNT, rank, 1);
    MPI_Iallgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
    CHECK(request == MPI_REQUEST_NULL);
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &gaps);
    MPI_Type_commit(&gaps);
    MPI_Iallgather(send, COUNT, MPI_INT, spread, COUNT, gaps, MPI_COMM_WORLD, &request);
    MPI_Type_free(&gaps);
    MPI_Request_free(&request);
    for (int last = (ranks - 1) * COUNT + COUNT - 1, flag; ; ) {
        MPI_Iprobe(MPI_ANY_SOURCE, 4711, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        volatile int *end = spread + 2 * last, *plain = receive + last;
        if (*end == value(ranks - 1, COUNT - 1, 1) && *plain == *end)
            break;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    gather_on(MPI_COMM_WORLD, 10, 0, 0); /* ordered after both */
    CHECK(wrong_in(receive, COUNT, ranks, 1) == 0);
    for (int i = 0; i < COUNT * ranks; i++)
        CHECK(spread[2 * i] == value(i / COUNT, i % COUNT, 1) && spread[2 * i + 1] == (int)0xeeeeeeee);
    free(send);
    free(receive);
    free(spread);
}

/* Posts many more requests than a service process accepts from a rank at once: the first ones end while the last ones
 * are posted. */
void many_in_flight(void)
{
    enum { MANY = 1500 };
    MPI_Request *requests = fresh(MANY * sizeof *requests);
    int *cells = fresh(MANY * sizeof *cells), bad = 0;
    for (int call = 0; call < MANY; call++) {
        cells[call] = rank == call % ranks ? call : -1;
        bad += MPI_Ibcast(&cells[call], 1, MPI_INT, call % ranks, MPI_COMM_WORLD, &requests[call]) != MPI_SUCCESS;
    }
    CHECK(bad == 0);
    CHECK(MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    for (int call = 0; call < MANY; call++)
        bad += cells[call] != call;
    CHECK(bad == 0);
    free(cells);
    free(requests);
}
