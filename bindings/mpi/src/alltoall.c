/*
 * alltoall.c: MPI_Alltoall(v) handed to the service process.
 *
 * Whether an alltoall is offloaded depends on the bytes of a block, which MPI makes equal on all ranks; the blocks of an
 * alltoallv are known to pairs of ranks alone, so all of them are offloaded or none. In place means that what is sent is
 * packed first, since it is overwritten.
 */
#include "shim.h"

/* `ranks` is 0 for even blocks. */
static bool unsound(const struct call *call, int ranks)
{
    return given_unsound(&call->receive, ranks) ||
           (call->send.buffer != MPI_IN_PLACE && given_unsound(&call->send, ranks));
}

static bool decide_even(struct posting *posting)
{
    return !unsound(posting->call, 0) && given_bytes(&posting->call->receive, &posting->bytes) &&
           outboard.group_offloads_alltoall(posting->group->members, posting->bytes) == 1;
}

static bool decide_uneven(struct posting *posting)
{
    return !unsound(posting->call, posting->group->ranks) &&
           outboard.group_offloads_alltoallv(posting->group->members) == 1;
}

static const struct given *sent(const struct posting *posting)
{
    bool in_place = posting->call->send.buffer == MPI_IN_PLACE;
    return in_place ? &posting->call->receive : &posting->call->send;
}

static int arrange_even(struct posting *posting)
{
    const struct given *send = sent(posting), *receive = &posting->call->receive;
    uint64_t ranks = (uint64_t)posting->group->ranks;
    side_run(&posting->sides.send, send, (uint64_t)send->count * ranks);
    side_run(&posting->sides.receive, receive, (uint64_t)receive->count * ranks);
    posting->sides.send.must_pack = send == receive;
    return MPI_SUCCESS;
}

static int arrange_uneven(struct posting *posting)
{
    const struct given *send = sent(posting), *receive = &posting->call->receive;
    side_blocks(&posting->sides.send, send, posting->group->ranks);
    side_blocks(&posting->sides.receive, receive, posting->group->ranks);
    posting->sides.send.must_pack = send == receive;
    return MPI_SUCCESS;
}

static int hand_over_even(struct posting *posting)
{
    const struct side *send = &posting->sides.send, *receive = &posting->sides.receive;
    if (send->total != receive->total)
        return MPI_ERR_TRUNCATE; /* what this rank sends itself is not what it says it receives from itself */
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

const struct method alltoall_method = {decide_even, arrange_even, hand_over_even};
const struct method alltoallv_method = {decide_uneven, arrange_uneven, hand_over_uneven};
