/*
 * broadcast.c: MPI_Bcast by the service process.
 *
 * Whether a call is offloaded depends on the bytes of the call, which MPI makes equal on all ranks. Each rank converts
 * between these bytes and the program's datatypes by itself.
 */
#include "shim.h"

static bool measure(const struct call *call, const struct group *group, uint64_t *bytes)
{
    return !given_unsound(&call->receive, 0) && call->root >= 0 && call->root < group->ranks &&
           given_bytes(&call->receive, bytes);
}

static bool allows(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_broadcast(group->members, bytes) == 1;
}

static int arrange(struct posting *posting)
{
    struct side *side = posting_is_root(posting) ? &posting->sides.send : &posting->sides.receive;
    side_run(side, &posting->call->receive, (uint64_t)posting->call->receive.count);
    return MPI_SUCCESS;
}

static int hand_over(struct posting *posting)
{
    const struct side *side = posting_is_root(posting) ? &posting->sides.send : &posting->sides.receive;
    return outcome_code(outboard.ibroadcast(posting->group->members, side_memory(side), posting->bytes,
                                            (uint32_t)posting->call->root, &posting->posted));
}

const struct method broadcast_method = {measure, allows, false, arrange, hand_over};
