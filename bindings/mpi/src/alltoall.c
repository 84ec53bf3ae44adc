/*
 * alltoall.c: MPI_Alltoall(v) by the service process.
 *
 * Whether an alltoall is offloaded depends on the bytes of a block, which MPI makes equal on all ranks. Only pairs of
 * ranks know the blocks of an alltoallv, so all alltoallvs are offloaded or none. In place, the sent data is packed
 * first, since it is overwritten.
 */
#include "shim.h"

/* `ranks` is 0 for even blocks. */
static bool unsound(const struct call *call, int ranks)
{
    return given_unsound(&call->receive, ranks) ||
           (call->send.buffer != MPI_IN_PLACE && given_unsound(&call->send, ranks));
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    (void)group;
    return !unsound(call, 0) && given_bytes(&call->receive, bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_alltoall(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    *bytes = BYTES_UNKNOWN;
    return !unsound(call, group->ranks);
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_alltoallv(group->members) == 1;
}

static int arrange(struct posting *posting)
{
    const struct call *call = posting->call;
    bool in_place = call->send.buffer == MPI_IN_PLACE;
    side_of_all(&posting->sides.send, in_place ? &call->receive : &call->send, posting->group->ranks);
    side_of_all(&posting->sides.receive, &call->receive, posting->group->ranks);
    posting->sides.send.must_pack = in_place;
    return MPI_SUCCESS;
}

static int hand_over_even(struct posting *posting)
{
    const struct side *send = &posting->sides.send, *receive = &posting->sides.receive;
    if (send->total != receive->total)
        return MPI_ERR_TRUNCATE; /* this rank sends itself another number of bytes than it receives from itself */
    return outcome_code(outboard.ialltoall(posting->group->members, side_memory(send), side_memory(receive),
                                           posting->bytes, &posting->posted));
}

static int hand_over_uneven(struct posting *posting)
{
    const struct side *send = &posting->sides.send, *receive = &posting->sides.receive;
    int own = posting->group->rank;
    if (send->bytes[own] != receive->bytes[own])
        return MPI_ERR_TRUNCATE; /* as above */
    return outcome_code(outboard.ialltoallv(posting->group->members, side_memory(send), send->bytes, send->offsets,
                                            side_memory(receive), receive->bytes, receive->offsets,
                                            &posting->posted));
}

const struct method alltoall_method = {measure_even, allows_even, false, arrange, hand_over_even};
const struct method alltoallv_method = {measure_uneven, allows_uneven, false, arrange, hand_over_uneven};
