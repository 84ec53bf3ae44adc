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

void transport_post(const void *send, void *receive, size_t bytes_per_rank)
{
    if (bytes_per_rank > INT_MAX)
        transport_fail("%zu bytes per rank do not fit an MPI count", bytes_per_rank);
    check(MPI_Iallgather(send, (int)bytes_per_rank, MPI_BYTE, receive, (int)bytes_per_rank, MPI_BYTE, MPI_COMM_WORLD,
                         &in_flight),
          "MPI_Iallgather");
}

void transport_broadcast(void *buffer, size_t bytes)
{
    if (bytes > INT_MAX)
        transport_fail("%zu bytes do not fit an MPI count", bytes);
    check(MPI_Ibcast(buffer, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &in_flight), "MPI_Ibcast");
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
