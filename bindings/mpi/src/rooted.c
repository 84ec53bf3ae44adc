/*
 * rooted.c: MPI_Gather(v) and MPI_Scatter(v) by the service process.
 *
 * The root has the blocks of all ranks, every other rank has one. Whether a gather or scatter is offloaded depends on
 * the bytes of a block, which MPI makes equal on all ranks. For gatherv and scatterv only the root and one rank know a
 * block, so all calls are offloaded or none. Arguments that MPI reads only on the root, MPI_IN_PLACE among them, are
 * ignored on other ranks.
 */
#include "shim.h"

static bool gathers(const struct call *call)
{
    return call->collective == COLLECTIVE_gather || call->collective == COLLECTIVE_gatherv;
}

/* The block of this rank; the function below returns the blocks of all, for the root. */
static const struct given *one(const struct call *call)
{
    return gathers(call) ? &call->send : &call->receive;
}

static const struct given *many(const struct call *call)
{
    return gathers(call) ? &call->receive : &call->send;
}

static bool in_place(const struct posting *posting)
{
    return posting_is_root(posting) && one(posting->call)->buffer == MPI_IN_PLACE;
}

/* `ranks` is 0 for even blocks. */
static bool unsound(const struct call *call, const struct group *group, int ranks)
{
    bool is_root = call->root == group->rank, in_its_place = one(call)->buffer == MPI_IN_PLACE;
    return call->root < 0 || call->root >= group->ranks || (!is_root && in_its_place) ||
           (is_root && given_unsound(many(call), ranks)) || (!in_its_place && given_unsound(one(call), 0));
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    return !unsound(call, group, 0) && given_bytes(call->root == group->rank ? many(call) : one(call), bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_gather(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    *bytes = BYTES_UNKNOWN;
    return !unsound(call, group, group->ranks);
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_alltoallv(group->members) == 1;
}

static struct side *side_of_one(struct posting *posting)
{
    return gathers(posting->call) ? &posting->sides.send : &posting->sides.receive;
}

static struct side *side_of_many(struct posting *posting)
{
    return gathers(posting->call) ? &posting->sides.receive : &posting->sides.send;
}

/* In a gather an in-place block is contributed from its place; in a scatter it stays there. */
static int arrange(struct posting *posting)
{
    const struct call *call = posting->call;
    if (posting_is_root(posting))
        side_of_all(side_of_many(posting), many(call), posting->group->ranks);
    if (!in_place(posting)) {
        side_run(side_of_one(posting), one(call), (uint64_t)one(call)->count);
        return MPI_SUCCESS;
    }
    return gathers(call) ? side_of_rank(side_of_one(posting), many(call), call->root) : MPI_SUCCESS;
}

/* The address of this rank's block for liboutboard: in place it lies among the others, unless they are packed. */
static void *own(struct posting *posting)
{
    const struct side *side = side_of_one(posting);
    bool lies = !gathers(posting->call) || (!side->packed && !side_of_many(posting)->packed);
    return in_place(posting) && lies ? (void *)OUTBOARD_IN_PLACE : side_memory(side);
}

/* Whether the root's own block differs in bytes between the two sides. */
static bool unequal(struct posting *posting, uint64_t bytes)
{
    return !in_place(posting) && side_of_one(posting)->total != bytes;
}

static int hand_over_even(struct posting *posting)
{
    outboard_group *members = posting->group->members;
    uint32_t root = (uint32_t)posting->call->root;
    void *all = side_memory(side_of_many(posting));
    if (unequal(posting, posting->bytes))
        return MPI_ERR_TRUNCATE;
    if (gathers(posting->call))
        return outcome_code(outboard.igather(members, own(posting), all, posting->bytes, root, &posting->posted));
    return outcome_code(outboard.iscatter(members, all, own(posting), posting->bytes, root, &posting->posted));
}

static int hand_over_uneven(struct posting *posting)
{
    outboard_group *members = posting->group->members;
    uint32_t root = (uint32_t)posting->call->root;
    struct side *blocks = side_of_many(posting);
    uint64_t bytes = side_of_one(posting)->total;
    if (posting_is_root(posting) && unequal(posting, blocks->bytes[root]))
        return MPI_ERR_TRUNCATE;
    if (gathers(posting->call))
        return outcome_code(outboard.igatherv(members, own(posting), bytes, side_memory(blocks), blocks->bytes,
                                              blocks->offsets, root, &posting->posted));
    return outcome_code(outboard.iscatterv(members, side_memory(blocks), blocks->bytes, blocks->offsets, own(posting),
                                           bytes, root, &posting->posted));
}

const struct method rooted_method = {measure_even, allows_even, false, arrange, hand_over_even};
const struct method rooted_uneven_method = {measure_uneven, allows_uneven, false, arrange, hand_over_uneven};
