/*
 * allgather.c: MPI_Allgather(v) by the service process.
 *
 * Whether a call is offloaded depends on the bytes of each rank, or of all together, which MPI makes equal on all
 * ranks. Each rank converts between these bytes and the program's datatypes by itself.
 */
#include "shim.h"

static bool send_unsound(const struct call *call)
{
    return call->send.buffer != MPI_IN_PLACE && given_unsound(&call->send, 0);
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    (void)group;
    return !given_unsound(&call->receive, 0) && !send_unsound(call) && given_bytes(&call->receive, bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_allgather(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    MPI_Count size;
    if (given_unsound(&call->receive, group->ranks) || send_unsound(call) ||
        PMPI_Type_size_x(call->receive.type, &size) != MPI_SUCCESS)
        return false;
    *bytes = 0;
    for (int rank = 0; rank < group->ranks; rank++)
        *bytes += (uint64_t)call->receive.counts[rank] * (uint64_t)size;
    return true;
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_allgatherv(group->members, bytes) == 1;
}

static int arrange(struct posting *posting)
{
    const struct call *call = posting->call;
    side_of_all(&posting->sides.receive, &call->receive, posting->group->ranks);
    if (call->send.buffer == MPI_IN_PLACE)
        return side_of_rank(&posting->sides.send, &call->receive, posting->group->rank);
    side_run(&posting->sides.send, &call->send, (uint64_t)call->send.count);
    return MPI_SUCCESS;
}

/* In place, the contribution lies where it is received, unless either side is packed. */
static const void *contribution(const struct posting *posting)
{
    const struct side *send = &posting->sides.send;
    bool lies = !send->packed && !posting->sides.receive.packed && send->total > 0;
    return posting->call->send.buffer == MPI_IN_PLACE && lies ? OUTBOARD_IN_PLACE : side_memory(send);
}

static int hand_over_even(struct posting *posting)
{
    const struct sides *sides = &posting->sides;
    if (sides->send.total != posting->bytes)
        return MPI_ERR_TRUNCATE; /* this rank contributes another number of bytes than it receives from each rank */
    return outcome_code(outboard.iallgather(posting->group->members, contribution(posting),
                                            side_memory(&sides->receive), posting->bytes, &posting->posted));
}

static int hand_over_uneven(struct posting *posting)
{
    const struct side *receive = &posting->sides.receive;
    if (posting->sides.send.total != receive->bytes[posting->group->rank])
        return MPI_ERR_TRUNCATE; /* this rank contributes another number of bytes than it receives from itself */
    return outcome_code(outboard.iallgatherv(posting->group->members, contribution(posting), side_memory(receive),
                                             receive->bytes, receive->offsets, &posting->posted));
}

const struct method allgather_method = {measure_even, allows_even, false, arrange, hand_over_even};
const struct method allgatherv_method = {measure_uneven, allows_uneven, false, arrange, hand_over_uneven};
