/*
 * failing.c: errors of offloaded collectives reach the communicator's error handler, the return codes and the statuses.
 *
 * Run with the fake liboutboard and OUTBOARD_FAKE_FAIL=1: every second collective of a communicator fails, on all
 * ranks alike. Prints TAP on rank 0.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MPI_VERSION >= 4 || OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_INIT(name) MPI_##name##_init
#else
#include <mpi-ext.h>
#define PERSISTENT_INIT(name) MPIX_##name##_init
#endif

static int rank, ranks, handled, handled_code, bad, number, *receive;
static MPI_Comm comm, handled_comm;

static void handler(MPI_Comm *failed, int *code, ...)
{
    handled++;
    handled_code = *code;
    handled_comm = *failed;
}

/* The least of all ranks' numbers. Messages are not offloaded, so they do not fail: they go around twice. */
static int minimum(int own)
{
    int least = own;
    for (int round = 0; round < 2; round++) {
        if (rank > 0 || round > 0)
            MPI_Recv(&least, 1, MPI_INT, (rank + ranks - 1) % ranks, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        least = least < own ? least : own;
        if (rank < ranks - 1 || round == 0)
            MPI_Send(&least, 1, MPI_INT, (rank + 1) % ranks, 2, MPI_COMM_WORLD);
    }
    return least;
}

static void report_test(int good, const char *name)
{
    int all = minimum(good);
    bad += !all;
    if (rank == 0)
        printf("%s %d - %s\n", all ? "ok" : "not ok", ++number, name);
}

static int explains(int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length, class = MPI_SUCCESS;
    MPI_Error_string(code, text, &length);
    MPI_Error_class(code, &class);
    return code != MPI_SUCCESS && class != MPI_SUCCESS && strstr(text, "rank 3 of the fake died") != NULL;
}

/* Two collectives on `comm`: the first succeeds, the second fails. */
static void post(MPI_Request *requests)
{
    static int own;
    own = rank;
    for (int i = 0; i < 2; i++)
        MPI_Iallgather(&own, 1, MPI_INT, receive + i * ranks, 1, MPI_INT, comm, &requests[i]);
}

static void wait_one(void)
{
    MPI_Request requests[2];
    MPI_Status statuses[2];
    post(requests);
    int outcome = MPI_Wait(&requests[0], &statuses[0]);
    outcome = outcome == MPI_SUCCESS && handled == 0 ? MPI_Wait(&requests[1], &statuses[1]) : MPI_SUCCESS;
    report_test(explains(outcome) && handled == 1 && handled_code == outcome && handled_comm == comm &&
                    requests[1] == MPI_REQUEST_NULL,
                "MPI_Wait returns the code after the communicator's handler");
}

static void wait_all(void)
{
    MPI_Request requests[3];
    MPI_Status statuses[3];
    int message = -1;
    post(requests);
    MPI_Irecv(&message, 1, MPI_INT, (rank + 1) % ranks, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Send(&rank, 1, MPI_INT, (rank + ranks - 1) % ranks, 1, MPI_COMM_WORLD);
    int outcome = MPI_Waitall(3, requests, statuses);
    report_test(outcome == MPI_ERR_IN_STATUS && handled == 2 && statuses[0].MPI_ERROR == MPI_SUCCESS &&
                    explains(statuses[1].MPI_ERROR) && statuses[2].MPI_ERROR == MPI_SUCCESS &&
                    message == (rank + 1) % ranks,
                "MPI_Waitall names the failed one in its status");
}

static void wait_any(void)
{
    MPI_Request requests[3];
    MPI_Status statuses[1];
    int index;
    post(requests);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    requests[2] = MPI_REQUEST_NULL;
    int outcome = MPI_Waitany(3, requests, &index, &statuses[0]);
    report_test(explains(outcome) && index == 1 && handled == 3, "MPI_Waitany returns the code and the index");
}

static void wait_some(void)
{
    MPI_Request requests[3];
    MPI_Status statuses[3];
    int indices[3], count;
    post(requests);
    requests[2] = MPI_REQUEST_NULL;
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    int outcome = MPI_Waitsome(3, requests, &count, indices, statuses);
    report_test(outcome == MPI_ERR_IN_STATUS && count == 1 && indices[0] == 1 && explains(statuses[0].MPI_ERROR) &&
                    handled == 4,
                "MPI_Waitsome names the failed one in its status");
}

static void test_one(void)
{
    MPI_Request requests[2];
    int flag, outcome;
    post(requests);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    for (flag = 0, outcome = MPI_SUCCESS; outcome == MPI_SUCCESS && !flag;)
        outcome = MPI_Test(&requests[1], &flag, MPI_STATUS_IGNORE);
    report_test(explains(outcome) && flag && handled == 5, "MPI_Test returns the code");
}

static void block(void)
{
    int outcome = MPI_Allgather(&rank, 1, MPI_INT, receive, 1, MPI_INT, comm);
    outcome = outcome == MPI_SUCCESS ? MPI_Allgather(&rank, 1, MPI_INT, receive, 1, MPI_INT, comm) : MPI_SUCCESS;
    report_test(explains(outcome) && handled == 6 && handled_comm == comm, "MPI_Allgather returns the code");
}

static void wait_persistent(void)
{
    MPI_Request request;
    int flag = 0;
    PERSISTENT_INIT(Allgather)(&rank, 1, MPI_INT, receive, 1, MPI_INT, comm, MPI_INFO_NULL, &request);
    for (int turn = 0; turn < 2; turn++) {
        MPI_Start(&request);
        int outcome = MPI_Wait(&request, MPI_STATUS_IGNORE);
        flag = turn == 0 ? outcome == MPI_SUCCESS : flag && explains(outcome);
    }
    flag = flag && MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && handled == 7 && handled_comm == comm;
    MPI_Request_free(&request);
    report_test(flag, "MPI_Wait returns the code of a persistent request once");
}

/* The requests are inactive afterwards. */
static void wait_any_persistent(MPI_Request *requests)
{
    int index, first = -1;
    for (int i = 0; i < 2; i++)
        PERSISTENT_INIT(Allgather)(&rank, 1, MPI_INT, receive + i * ranks, 1, MPI_INT, comm, MPI_INFO_NULL,
                                   &requests[i]);
    MPI_Startall(2, requests);
    int flag = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
    MPI_Startall(2, requests);
    for (int turn = 0; turn < 2; turn++) {
        int outcome = MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
        flag = flag && explains(outcome) && index != first && handled == 8 + turn;
        first = index;
    }
    report_test(flag, "MPI_Waitany returns the code of each persistent request with its index");
}

static void test_all_persistent(MPI_Request *requests)
{
    MPI_Status statuses[2];
    int flag, message = -1;
    MPI_Request_free(&requests[1]);
    MPI_Start(&requests[0]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    MPI_Start(&requests[0]);
    MPI_Irecv(&message, 1, MPI_INT, (rank + 1) % ranks, 3, MPI_COMM_WORLD, &requests[1]);
    for (flag = 0; !flag;)
        MPI_Request_get_status(requests[0], &flag, MPI_STATUS_IGNORE);
    int outcome = MPI_Testall(2, requests, &flag, statuses);
    int early = flag || outcome != MPI_SUCCESS || handled != 9;
    minimum(0);
    MPI_Send(&rank, 1, MPI_INT, (rank + ranks - 1) % ranks, 3, MPI_COMM_WORLD);
    for (flag = 0; !flag;)
        outcome = MPI_Testall(2, requests, &flag, statuses);
    report_test(!early && outcome == MPI_ERR_IN_STATUS && explains(statuses[0].MPI_ERROR) &&
                    statuses[1].MPI_ERROR == MPI_SUCCESS && handled == 10,
                "MPI_Testall tells of a failed persistent request when all have completed");
    MPI_Request_free(&requests[0]);
}

int main(int argc, char **argv)
{
    MPI_Errhandler errhandler;
    MPI_Request requests[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_create_errhandler(handler, &errhandler);
    MPI_Comm_set_errhandler(comm, errhandler);
    receive = malloc(3 * (size_t)ranks * sizeof(int));
    if (rank == 0)
        printf("1..9\n");
    wait_one();
    wait_all();
    wait_any();
    wait_some();
    test_one();
    block();
    wait_persistent();
    wait_any_persistent(requests);
    test_all_persistent(requests);
    MPI_Errhandler_free(&errhandler);
    MPI_Comm_free(&comm);
    free(receive);
    MPI_Finalize();
    return bad != 0;
}
