/*
 * broadcast.c: MPI_Bcast by the service process.
 *
 * Whether a call is offloaded depends on the bytes of the call, which MPI makes equal on all ranks. Each rank converts
 * between these bytes and the program's datatypes by itself.
 */
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"

static bool measure(const struct call *call, const struct group *group, uint64_t *bytes)
{
    return !user_buffer_invalid(&call->receive, 0) && call->root >= 0 && call->root < group->ranks &&
           user_buffer_bytes(&call->receive, bytes);
}

static bool allows(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_broadcast(group->members, bytes) == 1;
}

static int set_buffers(struct posting *posting)
{
    struct buffer *buffer = posting_is_root(posting) ? &posting->buffers.send : &posting->buffers.receive;
    buffer_set_run(buffer, &posting->call->receive, (uint64_t)posting->call->receive.count);
    return MPI_SUCCESS;
}

static int post(struct posting *posting)
{
    const struct buffer *buffer = posting_is_root(posting) ? &posting->buffers.send : &posting->buffers.receive;
    return outcome_code(outboard.ibroadcast(posting->group->members, buffer_memory(buffer), posting->bytes,
                                            (uint32_t)posting->call->root, &posting->posted));
}

const struct method broadcast_method = {measure, allows, false, set_buffers, post};
