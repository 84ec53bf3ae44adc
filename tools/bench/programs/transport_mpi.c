/* transport_mpi.c: the measuring program on any MPI library, or on Outboard below an MPI library's names. */
#include "transport.h"

#include "control.h"

#include <limits.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int own_rank;
static int all_ranks;
static char library[MPI_MAX_LIBRARY_VERSION_STRING];
static MPI_Request in_flight = MPI_REQUEST_NULL;
static int blocking;

/* Requests of a pattern; each array grows to the largest pattern. */
struct requests {
    MPI_Request *all;
    int count;
    int started;
};
static struct requests messages_in_flight;
static struct requests recorded;

static void check(int code, const char *call)
{
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(code, text, &length);
        transport_fail("%s: %.*s", call, length, text);
    }
}

/* Makes a call by its name; it must succeed. */
#define CALL(name, ...) check(MPI_##name(__VA_ARGS__), "MPI_" #name)

void transport_start(int *argc, char ***argv)
{
    int length = 0;
    CALL(Init, argc, argv);
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
    /* Ordinary memory, as in unmodified applications; page-aligned so that no library is at a disadvantage. */
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

/* Counts and displacements for MPI, which reads them until the collective has completed. */
struct arguments {
    int *counts;
    int *displacements;
};

/* Converts blocks. There is a place for the result of each side, because an alltoallv has two sides. */
static struct arguments arguments_of(const struct transport_blocks *blocks, int side)
{
    static struct arguments sides[2];
    struct arguments *of_side = &sides[side];
    if (of_side->counts == NULL) {
        of_side->counts = transport_alloc(sizeof *of_side->counts * (size_t)all_ranks);
        of_side->displacements = transport_alloc(sizeof *of_side->displacements * (size_t)all_ranks);
    }
    for (int rank = 0; rank < all_ranks; rank++) {
        of_side->counts[rank] = to_count(blocks->bytes[rank]);
        of_side->displacements[rank] = to_count(blocks->at[rank]);
    }
    return *of_side;
}

void transport_blocking(int on)
{
    blocking = on;
}

/* Makes the blocking call, or the nonblocking call, which has one more argument. */
#define COLLECTIVE(whole, start, ...)                                                                                  \
    check(blocking ? MPI_##whole(__VA_ARGS__, MPI_COMM_WORLD)                                                          \
                   : MPI_##start(__VA_ARGS__, MPI_COMM_WORLD, &in_flight),                                             \
          blocking ? "MPI_" #whole : "MPI_" #start)

void transport_allgather(const void *send, void *receive, size_t bytes)
{
    const int count = to_count(bytes);
    COLLECTIVE(Allgather, Iallgather, send, count, MPI_BYTE, receive, count, MPI_BYTE);
}

void transport_allgatherv(const void *send, void *receive, const struct transport_blocks *incoming)
{
    const struct arguments in = arguments_of(incoming, 0);
    COLLECTIVE(Allgatherv, Iallgatherv, send, in.counts[own_rank], MPI_BYTE, receive, in.counts, in.displacements,
               MPI_BYTE);
}

void transport_broadcast(void *buffer, size_t bytes, uint32_t root)
{
    COLLECTIVE(Bcast, Ibcast, buffer, to_count(bytes), MPI_BYTE, (int)root);
}

void transport_gather(const void *send, void *receive, size_t bytes, uint32_t root)
{
    const int count = to_count(bytes);
    COLLECTIVE(Gather, Igather, send, count, MPI_BYTE, receive, count, MPI_BYTE, (int)root);
}

void transport_gatherv(const void *send, void *receive, const struct transport_blocks *incoming, uint32_t root)
{
    const struct arguments in = arguments_of(incoming, 0);
    COLLECTIVE(Gatherv, Igatherv, send, in.counts[own_rank], MPI_BYTE, receive, in.counts, in.displacements, MPI_BYTE,
               (int)root);
}

void transport_scatter(const void *send, void *receive, size_t bytes, uint32_t root)
{
    const int count = to_count(bytes);
    COLLECTIVE(Scatter, Iscatter, send, count, MPI_BYTE, receive, count, MPI_BYTE, (int)root);
}

void transport_scatterv(const void *send, const struct transport_blocks *outgoing, void *receive, uint32_t root)
{
    const struct arguments out = arguments_of(outgoing, 0);
    COLLECTIVE(Scatterv, Iscatterv, send, out.counts, out.displacements, MPI_BYTE, receive, out.counts[own_rank],
               MPI_BYTE, (int)root);
}

void transport_reduce(const void *send, void *receive, size_t elements, uint32_t root)
{
    COLLECTIVE(Reduce, Ireduce, send, receive, to_count(elements), MPI_UINT64_T, MPI_SUM, (int)root);
}

void transport_allreduce(const void *send, void *receive, size_t elements)
{
    COLLECTIVE(Allreduce, Iallreduce, send, receive, to_count(elements), MPI_UINT64_T, MPI_SUM);
}

void transport_reduce_scatter_block(const void *send, void *receive, size_t elements_per_rank)
{
    COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, send, receive, to_count(elements_per_rank), MPI_UINT64_T,
               MPI_SUM);
}

void transport_scan(const void *send, void *receive, size_t elements)
{
    COLLECTIVE(Scan, Iscan, send, receive, to_count(elements), MPI_UINT64_T, MPI_SUM);
}

void transport_ibarrier(void)
{
    if (blocking)
        transport_barrier();
    else
        CALL(Ibarrier, MPI_COMM_WORLD, &in_flight);
}

void transport_alltoall(const void *send, void *receive, size_t bytes)
{
    const int count = to_count(bytes);
    COLLECTIVE(Alltoall, Ialltoall, send, count, MPI_BYTE, receive, count, MPI_BYTE);
}

void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming)
{
    const struct arguments out = arguments_of(outgoing, 0);
    const struct arguments in = arguments_of(incoming, 1);
    COLLECTIVE(Alltoallv, Ialltoallv, send, out.counts, out.displacements, MPI_BYTE, receive, in.counts,
               in.displacements, MPI_BYTE);
}

enum { TAG = 1 };

static void make_room(struct requests *requests, int count)
{
    requests->all = realloc(requests->all, sizeof *requests->all * (size_t)(count > 0 ? count : 1));
    if (requests->all == NULL)
        transport_fail("no memory for %d requests", count);
    requests->count = count;
}

void transport_messages(const struct transport_message *messages, int count)
{
    make_room(&messages_in_flight, count);
    for (int at = 0; at < count; at++) {
        const struct transport_message *message = &messages[at];
        const int bytes = to_count(message->bytes);
        MPI_Request *request = &messages_in_flight.all[at];
        if (message->sent)
            CALL(Isend, message->memory, bytes, MPI_BYTE, (int)message->peer, TAG, MPI_COMM_WORLD, request);
        else
            CALL(Irecv, message->memory, bytes, MPI_BYTE, (int)message->peer, TAG, MPI_COMM_WORLD, request);
    }
    messages_in_flight.started = 1;
}

void transport_send(uint32_t to, const void *memory, size_t bytes)
{
    CALL(Send, memory, to_count(bytes), MPI_BYTE, (int)to, TAG, MPI_COMM_WORLD);
}

void transport_receive(uint32_t from, void *memory, size_t bytes)
{
    CALL(Recv, memory, to_count(bytes), MPI_BYTE, (int)from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void transport_record(const struct transport_message *messages, int count)
{
    make_room(&recorded, count);
    for (int at = 0; at < count; at++) {
        const struct transport_message *message = &messages[at];
        const int bytes = to_count(message->bytes);
        MPI_Request *request = &recorded.all[at];
        if (message->sent)
            CALL(Send_init, message->memory, bytes, MPI_BYTE, (int)message->peer, TAG, MPI_COMM_WORLD, request);
        else
            CALL(Recv_init, message->memory, bytes, MPI_BYTE, (int)message->peer, TAG, MPI_COMM_WORLD, request);
    }
}

void transport_start_recorded(void)
{
    CALL(Startall, recorded.count, recorded.all);
    recorded.started = 1;
}

void transport_forget_recorded(void)
{
    for (int at = 0; at < recorded.count; at++)
        CALL(Request_free, &recorded.all[at]);
}

static void end(struct requests *requests)
{
    if (requests->started)
        CALL(Waitall, requests->count, requests->all, MPI_STATUSES_IGNORE);
    requests->started = 0;
}

void transport_wait(void)
{
    end(&messages_in_flight);
    end(&recorded);
    if (in_flight != MPI_REQUEST_NULL)
        CALL(Wait, &in_flight, MPI_STATUS_IGNORE);
}

void transport_barrier(void)
{
    CALL(Barrier, MPI_COMM_WORLD);
}

void transport_exchange(const double *mine, double *all, int count)
{
    CALL(Allgather, mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

_Noreturn void transport_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain((uint32_t)own_rank, format, arguments);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _Exit(1);
}
