/* right: wrong arguments are refused with MPI's own error class, and the communicator goes on; a collective cannot be
 * cancelled, and ends */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 200000 };

static int class_of(int code)
{
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    return class;
}

int main(int argc, char **argv)
{
    int rank, ranks, bad = 0;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *send = malloc(COUNT * sizeof *send), *receive = malloc((size_t)COUNT * (size_t)ranks * sizeof *receive);
    for (int at = 0; at < COUNT; at++)
        send[at] = rank * COUNT + at;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int in_place = class_of(MPI_Allgather(send, COUNT, MPI_INT, MPI_IN_PLACE, COUNT, MPI_INT, MPI_COMM_WORLD));
    bad += in_place != MPI_ERR_ARG && in_place != MPI_ERR_BUFFER;
    bad += class_of(MPI_Allgather(send, -1, MPI_INT, receive, -1, MPI_INT, MPI_COMM_WORLD)) != MPI_ERR_COUNT;
    bad += class_of(MPI_Bcast(send, 1, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD)) != MPI_ERR_TYPE;
    bad += class_of(MPI_Bcast(send, 1, MPI_INT, ranks, MPI_COMM_WORLD)) != MPI_ERR_ROOT;
    MPI_Iallgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD, &request);
    bad += class_of(MPI_Cancel(&request)) != MPI_ERR_REQUEST;
    bad += MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS;
    for (int at = 0; at < COUNT * ranks; at++)
        bad += receive[at] != at;
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
