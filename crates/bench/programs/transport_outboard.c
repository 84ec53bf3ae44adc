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
/* The same of messages; as many as the largest pattern had. */
static outboard_request **messages_in_flight;
static int messages_count;
static outboard_recorded *recorded;
static uint32_t own_rank;
static uint32_t all_ranks;

static void check(int code, const char *call)
{
    if (code != OUTBOARD_OK)
        transport_fail("%s: %s (%d)", call, outboard_last_error(), code);
}

void transport_start(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    check(outboard_attach(NULL, &context), "outboard_attach");
    check(outboard_group_world(context, &world), "outboard_group_world");
    check(outboard_group_rank(world, &own_rank), "outboard_group_rank");
    check(outboard_group_size(world, &all_ranks), "outboard_group_size");
}

void transport_stop(void)
{
    check(outboard_group_destroy(world), "outboard_group_destroy");
    check(outboard_detach(context), "outboard_detach");
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
    check(outboard_alloc(context, bytes > 0 ? bytes : 1, &memory), "outboard_alloc");
    return memory;
}

/* There are no others than those that start a call. */
void transport_blocking(int on)
{
    (void)on;
}

void transport_allgather(const void *send, void *receive, size_t bytes)
{
    check(outboard_iallgather(world, send, receive, bytes, &in_flight), "outboard_iallgather");
}

void transport_allgatherv(const void *send, void *receive, const struct transport_blocks *incoming)
{
    check(outboard_iallgatherv(world, send, receive, incoming->bytes, incoming->at, &in_flight),
          "outboard_iallgatherv");
}

void transport_broadcast(void *buffer, size_t bytes, uint32_t root)
{
    check(outboard_ibroadcast(world, buffer, bytes, root, &in_flight), "outboard_ibroadcast");
}

void transport_alltoall(const void *send, void *receive, size_t bytes)
{
    check(outboard_ialltoall(world, send, receive, bytes, &in_flight), "outboard_ialltoall");
}

void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming)
{
    check(outboard_ialltoallv(world, send, outgoing->bytes, outgoing->at, receive, incoming->bytes, incoming->at,
                              &in_flight),
          "outboard_ialltoallv");
}

void transport_gather(const void *send, void *receive, size_t bytes, uint32_t root)
{
    check(outboard_igather(world, send, receive, bytes, root, &in_flight), "outboard_igather");
}

void transport_gatherv(const void *send, void *receive, const struct transport_blocks *incoming, uint32_t root)
{
    check(outboard_igatherv(world, send, incoming->bytes[own_rank], receive, incoming->bytes, incoming->at, root,
                            &in_flight),
          "outboard_igatherv");
}

void transport_scatter(const void *send, void *receive, size_t bytes, uint32_t root)
{
    check(outboard_iscatter(world, send, receive, bytes, root, &in_flight), "outboard_iscatter");
}

void transport_scatterv(const void *send, const struct transport_blocks *outgoing, void *receive, uint32_t root)
{
    check(outboard_iscatterv(world, send, outgoing->bytes, outgoing->at, receive, outgoing->bytes[own_rank], root,
                             &in_flight),
          "outboard_iscatterv");
}

void transport_reduce(const void *send, void *receive, size_t elements, uint32_t root)
{
    check(outboard_ireduce(world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, root, &in_flight),
          "outboard_ireduce");
}

void transport_allreduce(const void *send, void *receive, size_t elements)
{
    check(outboard_iallreduce(world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, &in_flight),
          "outboard_iallreduce");
}

void transport_reduce_scatter_block(const void *send, void *receive, size_t elements_per_rank)
{
    check(outboard_ireduce_scatter_block(world, send, receive, elements_per_rank, OUTBOARD_SUM, OUTBOARD_U64,
                                         &in_flight),
          "outboard_ireduce_scatter_block");
}

void transport_scan(const void *send, void *receive, size_t elements)
{
    check(outboard_iscan(world, send, receive, elements, OUTBOARD_SUM, OUTBOARD_U64, &in_flight), "outboard_iscan");
}

void transport_ibarrier(void)
{
    check(outboard_ibarrier(world, &in_flight), "outboard_ibarrier");
}

static void end(outboard_request **request)
{
    if (*request == NULL)
        return;
    check(outboard_wait(*request, -1, NULL), "outboard_wait");
    check(outboard_request_free(*request), "outboard_request_free");
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
            check(outboard_isend(world, message->peer, TAG, message->memory, message->bytes, &messages_in_flight[at]),
                  "outboard_isend");
        else
            check(outboard_ireceive(world, message->peer, TAG, message->memory, message->bytes,
                                    &messages_in_flight[at]),
                  "outboard_ireceive");
    }
    messages_count = count;
}

void transport_send(uint32_t to, const void *memory, size_t bytes)
{
    check(outboard_isend(world, to, TAG, memory, bytes, &in_flight), "outboard_isend");
    end(&in_flight);
}

void transport_receive(uint32_t from, void *memory, size_t bytes)
{
    check(outboard_ireceive(world, from, TAG, memory, bytes, &in_flight), "outboard_ireceive");
    end(&in_flight);
}

void transport_record(const struct transport_message *messages, int count)
{
    outboard_recorder *recorder = NULL;
    check(outboard_record_begin(world, &recorder), "outboard_record_begin");
    for (int at = 0; at < count; at++) {
        const struct transport_message *message = &messages[at];
        if (message->sent)
            check(outboard_record_send(recorder, message->peer, TAG, message->memory, message->bytes),
                  "outboard_record_send");
        else
            check(outboard_record_receive(recorder, message->peer, TAG, message->memory, message->bytes),
                  "outboard_record_receive");
    }
    check(outboard_record_end(recorder, &recorded), "outboard_record_end");
}

void transport_start_recorded(void)
{
    check(outboard_recorded_call(recorded, &in_flight), "outboard_recorded_call");
}

void transport_forget_recorded(void)
{
    check(outboard_recorded_free(recorded), "outboard_recorded_free");
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
