/*
 * alltoall.c: MPI_Alltoall, MPI_Alltoallv and MPI_Alltoallw by the service process.
 *
 * Whether an alltoall is offloaded depends on the bytes of a block, which MPI makes equal on all ranks. Only pairs of
 * ranks know the blocks of the others, so all calls are offloaded or none. In place, the sent data is packed
 * first, since it is overwritten.
 */
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"

/* Whether MPI would reject the call. `ranks` is 0 for even blocks. */
static bool invalid(const struct call *call, int ranks)
{
    return user_buffer_invalid(&call->receive, ranks) ||
           (call->send.address != MPI_IN_PLACE && user_buffer_invalid(&call->send, ranks));
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    (void)group;
    return !invalid(call, 0) && user_buffer_bytes(&call->receive, bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_alltoall(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    *bytes = BYTES_UNKNOWN;
    return !invalid(call, group->ranks);
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_alltoallv(group->members) == 1;
}

static int set_buffers(struct posting *posting)
{
    const struct call *call = posting->call;
    bool in_place = call->send.address == MPI_IN_PLACE;
    buffer_set_blocks(&posting->buffers.send, in_place ? &call->receive : &call->send, posting->group->ranks);
    buffer_set_blocks(&posting->buffers.receive, &call->receive, posting->group->ranks);
    posting->buffers.send.must_pack = in_place;
    return MPI_SUCCESS;
}

static int post_even(struct posting *posting)
{
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    if (send->total != receive->total)
        return MPI_ERR_TRUNCATE; /* this rank sends itself another number of bytes than it receives from itself */
    return outcome_code(outboard.ialltoall(posting->group->members, buffer_memory(send), buffer_memory(receive),
                                           posting->bytes, &posting->posted));
}

static int post_uneven(struct posting *posting)
{
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    int own = posting->group->rank;
    if (send->bytes[own] != receive->bytes[own])
        return MPI_ERR_TRUNCATE; /* this rank's block for itself has two sizes */
    return outcome_code(outboard.ialltoallv(posting->group->members, buffer_memory(send), send->bytes, send->offsets,
                                            buffer_memory(receive), receive->bytes, receive->offsets,
                                            &posting->posted));
}

const struct method alltoall_method = {measure_even, allows_even, false, set_buffers, post_even};
const struct method alltoallv_method = {measure_uneven, allows_uneven, false, set_buffers, post_uneven};
const struct method alltoallw_method = {measure_uneven, allows_uneven, false, set_buffers, post_uneven};
