/*
 * rooted.c: MPI_Gather(v) and MPI_Scatter(v) by the service process.
 *
 * The root has the blocks of all ranks, every other rank has one. Whether a gather or scatter is offloaded depends on
 * the bytes of a block, which MPI makes equal on all ranks. For gatherv and scatterv only the root and one rank know a
 * block, so all calls are offloaded or none. Arguments that MPI reads only on the root, MPI_IN_PLACE among them, are
 * ignored on other ranks.
 */
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"
#include "shim.h"

static bool gathers(const struct call *call)
{
    return call->collective == COLLECTIVE_gather || call->collective == COLLECTIVE_gatherv;
}

/* The block of this rank. The next function returns the blocks of all ranks, for the root. */
static const struct user_buffer *own_block(const struct call *call)
{
    return gathers(call) ? &call->send : &call->receive;
}

static const struct user_buffer *all_blocks(const struct call *call)
{
    return gathers(call) ? &call->receive : &call->send;
}

static bool in_place(const struct posting *posting)
{
    return posting_is_root(posting) && own_block(posting->call)->address == MPI_IN_PLACE;
}

/* Whether MPI would reject the call. `ranks` is 0 for even blocks. */
static bool invalid(const struct call *call, const struct group *group, int ranks)
{
    bool is_root = call->root == group->rank, own_in_place = own_block(call)->address == MPI_IN_PLACE;
    return call->root < 0 || call->root >= group->ranks || (!is_root && own_in_place) ||
           (is_root && user_buffer_invalid(all_blocks(call), ranks)) ||
           (!own_in_place && user_buffer_invalid(own_block(call), 0));
}

static bool measure_even(const struct call *call, const struct group *group, uint64_t *bytes)
{
    return !invalid(call, group, 0) &&
           user_buffer_bytes(call->root == group->rank ? all_blocks(call) : own_block(call), bytes);
}

static bool allows_even(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_gather(group->members, bytes) == 1;
}

static bool measure_uneven(const struct call *call, const struct group *group, uint64_t *bytes)
{
    *bytes = BYTES_UNKNOWN;
    return !invalid(call, group, group->ranks);
}

static bool allows_uneven(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_alltoallv(group->members) == 1;
}

static struct buffer *own_buffer(struct posting *posting)
{
    return gathers(posting->call) ? &posting->buffers.send : &posting->buffers.receive;
}

static struct buffer *all_buffer(struct posting *posting)
{
    return gathers(posting->call) ? &posting->buffers.receive : &posting->buffers.send;
}

/* In a gather, a block in place is contributed from the receive buffer. In a scatter, it stays in the send buffer. */
static int set_buffers(struct posting *posting)
{
    const struct call *call = posting->call;
    if (posting_is_root(posting))
        buffer_set_blocks(all_buffer(posting), all_blocks(call), posting->group->ranks);
    if (!in_place(posting)) {
        buffer_set_run(own_buffer(posting), own_block(call), (uint64_t)own_block(call)->count);
        return MPI_SUCCESS;
    }
    return gathers(call) ? buffer_set_block_of(own_buffer(posting), all_blocks(call), call->root) : MPI_SUCCESS;
}

/* The address of this rank's block for liboutboard. A block in place lies among all blocks, unless these are packed. */
static void *own_address(struct posting *posting)
{
    const struct buffer *buffer = own_buffer(posting);
    bool stays_in_buffer = !gathers(posting->call) || (!buffer->packed && !all_buffer(posting)->packed);
    return in_place(posting) && stays_in_buffer ? (void *)OUTBOARD_IN_PLACE : buffer_memory(buffer);
}

/* Whether the root's own block differs in bytes between the two buffers. */
static bool own_block_differs(struct posting *posting, uint64_t bytes)
{
    return !in_place(posting) && own_buffer(posting)->total != bytes;
}

static int post_even(struct posting *posting)
{
    outboard_group *members = posting->group->members;
    uint32_t root = (uint32_t)posting->call->root;
    void *all = buffer_memory(all_buffer(posting));
    if (own_block_differs(posting, posting->bytes))
        return MPI_ERR_TRUNCATE;
    if (gathers(posting->call))
        return outcome_code(
            outboard.igather(members, own_address(posting), all, posting->bytes, root, &posting->posted));
    return outcome_code(outboard.iscatter(members, all, own_address(posting), posting->bytes, root, &posting->posted));
}

static int post_uneven(struct posting *posting)
{
    outboard_group *members = posting->group->members;
    uint32_t root = (uint32_t)posting->call->root;
    struct buffer *blocks = all_buffer(posting);
    uint64_t bytes = own_buffer(posting)->total;
    if (posting_is_root(posting) && own_block_differs(posting, blocks->bytes[root]))
        return MPI_ERR_TRUNCATE;
    if (gathers(posting->call))
        return outcome_code(outboard.igatherv(members, own_address(posting), bytes, buffer_memory(blocks),
                                              blocks->bytes, blocks->offsets, root, &posting->posted));
    return outcome_code(outboard.iscatterv(members, buffer_memory(blocks), blocks->bytes, blocks->offsets,
                                           own_address(posting), bytes, root, &posting->posted));
}

const struct method rooted_method = {measure_even, allows_even, false, set_buffers, post_even};
const struct method rooted_uneven_method = {measure_uneven, allows_uneven, false, set_buffers, post_uneven};
