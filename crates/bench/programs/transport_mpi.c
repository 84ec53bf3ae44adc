/* transport_mpi.c: the measuring program on any MPI library, or on Outboard below an MPI library's names. */
#include "transport.h"

#include <limits.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int own_rank;
static int all_ranks;
static char library[MPI_MAX_LIBRARY_VERSION_STRING];
static MPI_Request in_flight = MPI_REQUEST_NULL;
/* Counts and displacements of the alltoallv in flight, which MPI reads until it has completed. */
static int *alltoallv_arguments;

static void check(int code, const char *call)
{
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(code, text, &length);
        transport_fail("%s: %.*s", call, length, text);
    }
}

void transport_start(int *argc, char ***argv)
{
    int length = 0;
    check(MPI_Init(argc, argv), "MPI_Init");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all_ranks);
    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\n")] = '\0';
}

void transport_stop(void)
{
    MPI_Finalize();
}

uint32_t transport_rank(void)
{
    return (uint32_t)own_rank;
}

uint32_t transport_ranks(void)
{
    return (uint32_t)all_ranks;
}

const char *transport_library(void)
{
    return library;
}

void *transport_alloc(size_t bytes)
{
    /* Ordinary memory, as unmodified applications use; page-aligned so that no library is at a disadvantage. */
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes > 0 ? bytes : 1) != 0)
        transport_fail("no memory for a buffer of %zu bytes", bytes);
    return memory;
}

static int to_count(uint64_t bytes)
{
    if (bytes > INT_MAX)
        transport_fail("%llu bytes do not fit an MPI count", (unsigned long long)bytes);
    return (int)bytes;
}

void transport_post(const void *send, void *receive, size_t bytes_per_rank)
{
    const int count = to_count(bytes_per_rank);
    check(MPI_Iallgather(send, count, MPI_BYTE, receive, count, MPI_BYTE, MPI_COMM_WORLD, &in_flight), "MPI_Iallgather");
}

void transport_broadcast(void *buffer, size_t bytes)
{
    check(MPI_Ibcast(buffer, to_count(bytes), MPI_BYTE, 0, MPI_COMM_WORLD, &in_flight), "MPI_Ibcast");
}

void transport_alltoall(const void *send, void *receive, size_t bytes)
{
    const int count = to_count(bytes);
    check(MPI_Ialltoall(send, count, MPI_BYTE, receive, count, MPI_BYTE, MPI_COMM_WORLD, &in_flight), "MPI_Ialltoall");
}

void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming)
{
    const uint64_t *const given[] = {outgoing->bytes, outgoing->at, incoming->bytes, incoming->at};
    int *arguments[4];
    if (alltoallv_arguments == NULL)
        alltoallv_arguments = transport_alloc(sizeof *alltoallv_arguments * 4 * (size_t)all_ranks);
    for (int which = 0; which < 4; which++) {
        arguments[which] = alltoallv_arguments + which * all_ranks;
        for (int rank = 0; rank < all_ranks; rank++)
            arguments[which][rank] = to_count(given[which][rank]);
    }
    check(MPI_Ialltoallv(send, arguments[0], arguments[1], MPI_BYTE, receive, arguments[2], arguments[3], MPI_BYTE,
                         MPI_COMM_WORLD, &in_flight),
          "MPI_Ialltoallv");
}

int transport_test(void)
{
    int done = 0;
    check(MPI_Test(&in_flight, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done;
}

void transport_wait(void)
{
    check(MPI_Wait(&in_flight, MPI_STATUS_IGNORE), "MPI_Wait");
}

void transport_barrier(void)
{
    check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

void transport_exchange(const double *mine, double *all, int count)
{
    check(MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD), "MPI_Allgather");
}

_Noreturn void transport_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", own_rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _Exit(1);
}
