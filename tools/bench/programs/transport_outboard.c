/* transport_outboard.c: the measuring program on Outboard's C interface, without any MPI library. */
#include "transport.h"

#include "control.h"

#include <outboard.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static outboard_context *context;
static outboard_group *world;
static outboard_request *in_flight;
/* Requests of messages in flight, as many as the largest pattern had. */
static outboard_request **messages_in_flight;
static int messages_count;
static outboard_recorded *recorded;
static uint32_t own_rank;
static uint32_t all_ranks;

static void check(int code, const char *call)
{
    if (code != OUTBOARD_OK)
        transport_fail("outboard_%s: %s (%d)", call, outboard_last_error(), code);
}

/* Makes a call by its name; it must succeed. */
#define CALL(name, ...) check(outboard_##name(__VA_ARGS__), #name)

void transport_start(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    CALL(attach, NULL, &context);
    CALL(group_world, context, &world);
    CALL(group_rank, world, &own_rank);
    CALL(group_size, world, &all_ranks);
}

void transport_stop(void)
{
    CALL(group_destroy, world);
    CALL(detach, context);
}

uint32_t transport_rank(void)
{
    return own_rank;
}

uint32_t transport_ranks(void)
{
    return all_ranks;
}

const char *transport_library(void)
{
    static char text[128];
    snprintf(text, sizeof text, "Outboard C interface %d, memory by %s", outboard_abi_version(),
             outboard_memory_tier(context));
    return text;
}

void *transport_alloc(size_t bytes)
{
    void *memory = NULL;
    CALL(alloc, context, bytes > 0 ? bytes : 1, &memory);
    return memory;
}

/* Every call is nonblocking. */
void transport_blocking(int on)
{
    (void)on;
}

void transport_allgather(const void *send, void *receive, size_t bytes)
{
    CALL(iallgather, world, send, receive, bytes, &in_flight);
}

void transport_allgatherv(const void *send, void *receive, const struct transport_blocks *incoming)
{
    CALL(iallgatherv, world, send, receive, incoming->bytes, incoming->at, &in_flight);
}

void transport_broadcast(void *buffer, size_t bytes, uint32_t root)
{
    CALL(ibroadcast, world, buffer, bytes, root, &in_flight);
}

void transport_alltoall(const void *send, void *receive, size_t bytes)
{
    CALL(ialltoall, world, send, receive, bytes, &in_flight);
}

void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming)
{
    CALL(ialltoallv, world, send, outgoing->bytes, outgoing->at, receive, incoming->bytes, incoming->at, &in_flight);
}

void transport_gather(const void *send, void *receive, size_t bytes, uint32_t root)
{
    CALL(igather, world, send, receive, bytes, root, &in_flight);
}

void transport_gatherv(const void *send, void *receive, const struct transport_blocks *incoming, uint32_t root)
{
    CALL(igatherv, world, send, incoming->bytes[own_rank], receive, incoming->bytes, incoming->at, root, &in_flight);
}

void transport_scatter(const void *send, void *receive, size_t bytes, uint32_t root)
{
    CALL(iscatter, world, send, receive, bytes, root, &in_flight);
}

void transport_scatterv(const void *send, const struct transport_blocks *outgoing, void *receive, uint32_t root)
{
    CALL(iscatterv, world, send, outgoing->bytes, outgoing->at, receive, outgoing->bytes[own_rank], root, &in_flight);
}

void transport_reduce(const void *send, void *receive, size_t elements, uint32_t root)
{
    CALL(ireduce, world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, root, &in_flight);
}

void transport_allreduce(const void *send, void *receive, size_t elements)
{
    CALL(iallreduce, world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, &in_flight);
}

void transport_reduce_scatter_block(const void *send, void *receive, size_t elements_per_rank)
{
    CALL(ireduce_scatter_block, world, send, receive, elements_per_rank, OUTBOARD_SUM, OUTBOARD_U64, &in_flight);
}

void transport_scan(const void *send, void *receive, size_t elements)
{
    CALL(iscan, world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, &in_flight);
}

void transport_ibarrier(void)
{
    CALL(ibarrier, world, &in_flight);
}

static void end(outboard_request **request)
{
    if (*request == NULL)
        return;
    CALL(wait, *request, -1, NULL);
    CALL(request_free, *request);
    *request = NULL;
}

enum { TAG = 1 };

void transport_messages(const struct transport_message *messages, int count)
{
    messages_in_flight = realloc(messages_in_flight, sizeof *messages_in_flight * (size_t)(count > 0 ? count : 1));
    if (messages_in_flight == NULL)
        transport_fail("no memory for %d requests", count);
    for (int at = 0; at < count; at++) {
        const struct transport_message *message = &messages[at];
        if (message->sent)
            CALL(isend, world, message->peer, TAG, message->memory, message->bytes, &messages_in_flight[at]);
        else
            CALL(ireceive, world, message->peer, TAG, message->memory, message->bytes, &messages_in_flight[at]);
    }
    messages_count = count;
}

void transport_send(uint32_t to, const void *memory, size_t bytes)
{
    CALL(isend, world, to, TAG, memory, bytes, &in_flight);
    end(&in_flight);
}

void transport_receive(uint32_t from, void *memory, size_t bytes)
{
    CALL(ireceive, world, from, TAG, memory, bytes, &in_flight);
    end(&in_flight);
}

void transport_record(const struct transport_message *messages, int count)
{
    outboard_recorder *recorder = NULL;
    CALL(record_begin, world, &recorder);
    for (int at = 0; at < count; at++) {
        const struct transport_message *message = &messages[at];
        if (message->sent)
            CALL(record_send, recorder, message->peer, TAG, message->memory, message->bytes);
        else
            CALL(record_receive, recorder, message->peer, TAG, message->memory, message->bytes);
    }
    CALL(record_end, recorder, &recorded);
}

void transport_start_recorded(void)
{
    CALL(recorded_call, recorded, &in_flight);
}

void transport_forget_recorded(void)
{
    CALL(recorded_free, recorded);
}

void transport_wait(void)
{
    for (int at = 0; at < messages_count; at++)
        end(&messages_in_flight[at]);
    messages_count = 0;
    end(&in_flight);
}

void transport_barrier(void)
{
    transport_ibarrier();
    end(&in_flight);
}

void transport_exchange(const double *mine, double *all, int count)
{
    transport_allgather(mine, all, (size_t)count * sizeof *mine);
    end(&in_flight);
}

_Noreturn void transport_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain(own_rank, format, arguments);
    va_end(arguments);
    _Exit(1);
}
