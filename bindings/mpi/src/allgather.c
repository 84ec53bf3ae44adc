/*
 * allgather.c: MPI_Allgather(v) by the service process.
 *
 * Whether a call is offloaded depends on the bytes of each rank, or of all ranks together, which MPI makes equal on all
 * ranks. Each rank converts between these bytes and the program's datatypes by itself.
 */
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"

static bool send_invalid(const struct call *call)
{
    return call->send.address != MPI_IN_PLACE && user_buffer_invalid(&call->send, 0);
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    (void)group;
    return !user_buffer_invalid(&call->receive, 0) && !send_invalid(call) && user_buffer_bytes(&call->receive, bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_allgather(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    MPI_Count size;
    if (user_buffer_invalid(&call->receive, group->ranks) || send_invalid(call) ||
        mpi.Type_size_x(call->receive.type, &size) != MPI_SUCCESS)
        return false;
    *bytes = 0;
    for (int rank = 0; rank < group->ranks; rank++)
        *bytes += (uint64_t)user_buffer_count(&call->receive, rank) * (uint64_t)size;
    return true;
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_allgatherv(group->members, bytes) == 1;
}

static int set_buffers(struct posting *posting)
{
    const struct call *call = posting->call;
    buffer_set_blocks(&posting->buffers.receive, &call->receive, posting->group->ranks);
    if (call->send.address == MPI_IN_PLACE)
        return buffer_set_block_of(&posting->buffers.send, &call->receive, posting->group->rank);
    buffer_set_run(&posting->buffers.send, &call->send, (uint64_t)call->send.count);
    return MPI_SUCCESS;
}

/* A contribution in place lies in the receive buffer, unless a buffer is packed. */
static const void *contribution(const struct posting *posting)
{
    const struct buffer *send = &posting->buffers.send;
    bool stays_in_buffer = !send->packed && !posting->buffers.receive.packed && send->total > 0;
    return posting->call->send.address == MPI_IN_PLACE && stays_in_buffer ? OUTBOARD_IN_PLACE : buffer_memory(send);
}

static int post_even(struct posting *posting)
{
    const struct buffers *buffers = &posting->buffers;
    if (buffers->send.total != posting->bytes)
        return MPI_ERR_TRUNCATE; /* this rank contributes another number of bytes than it receives from each rank */
    return outcome_code(outboard.iallgather(posting->group->members, contribution(posting),
                                            buffer_memory(&buffers->receive), posting->bytes, &posting->posted));
}

static int post_uneven(struct posting *posting)
{
    const struct buffer *receive = &posting->buffers.receive;
    if (posting->buffers.send.total != receive->bytes[posting->group->rank])
        return MPI_ERR_TRUNCATE; /* this rank contributes another number of bytes than it receives from itself */
    return outcome_code(outboard.iallgatherv(posting->group->members, contribution(posting), buffer_memory(receive),
                                             receive->bytes, receive->offsets, &posting->posted));
}

const struct method allgather_method = {measure_even, allows_even, false, set_buffers, post_even};
const struct method allgatherv_method = {measure_uneven, allows_uneven, false, set_buffers, post_uneven};
