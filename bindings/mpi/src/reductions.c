/*
 * reductions.c: MPI_Barrier, MPI_Reduce, MPI_Allreduce, MPI_Reduce_scatter(_block), MPI_Scan and MPI_Exscan by the
 * service process.
 *
 * Whether a reduction is offloaded depends on its operator, datatype and counts, which MPI makes equal on all ranks.
 * Elements of the predefined datatypes have liboutboard's layout, so nothing is ever packed.
 */
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "library.h"
#include "methods.h"
#include "operators.h"
#include "shim.h"

static bool measure_barrier(const struct call *call, const struct group *group, uint64_t *bytes)
{
    (void)call;
    (void)group;
    *bytes = 0;
    return true;
}

static bool allows_barrier(const struct group *group, uint64_t bytes)
{
    (void)bytes;
    return outboard.group_offloads_barrier(group->members) == 1;
}

static int set_no_buffers(struct posting *posting)
{
    (void)posting;
    return MPI_SUCCESS;
}

static int post_barrier(struct posting *posting)
{
    return outcome_code(outboard.ibarrier(posting->group->members, &posting->posted));
}

/* Elements that each rank contributes; false for counts that MPI would reject. */
static bool count_elements(const struct call *call, int ranks, uint64_t *elements)
{
    const struct user_buffer *receive = &call->receive;
    bool by_rank = call->collective == COLLECTIVE_reduce_scatter;
    *elements = 0;
    if (by_rank && receive->counts == NULL)
        return false;
    for (int rank = 0; rank < (by_rank ? ranks : 1); rank++) {
        int64_t count = by_rank ? user_buffer_count(receive, rank) : receive->count;
        if (count < 0)
            return false;
        *elements += (uint64_t)count;
    }
    if (call->collective == COLLECTIVE_reduce_scatter_block)
        *elements *= (uint64_t)ranks;
    return true;
}

static bool measure(const struct call *call, const struct group *group, uint64_t *bytes)
{
    bool has_root = call->collective == COLLECTIVE_reduce;
    if (has_root && (call->root < 0 || call->root >= group->ranks))
        return false;
    bool receives = !has_root || call->root == group->rank;
    if ((!receives && call->send.address == MPI_IN_PLACE) || (receives && call->receive.address == MPI_IN_PLACE))
        return false;
    struct reduction reduction;
    uint64_t elements;
    return reduction_of(call->op, call->receive.type, &reduction) && count_elements(call, group->ranks, &elements) &&
           (elements == 0 || !receives || call->receive.address != NULL) &&
           !__builtin_mul_overflow(elements, reduction.element_bytes, bytes);
}

static bool allows(const struct group *group, uint64_t bytes)
{
    return outboard.group_offloads_reduction(group->members, bytes) == 1 && bytes >> group->reduced_bits == 0;
}

/* The buffer in the form that liboutboard accepts: never NULL, even for no bytes. */
static void *non_null(void *buffer)
{
    static _Alignas(16) unsigned char nothing[16];
    return buffer == NULL ? nothing : buffer;
}

static int scatter(struct posting *posting, const struct reduction *reduction, const void *from, void *into)
{
    const struct user_buffer *receive = &posting->call->receive;
    size_t ranks = (size_t)posting->group->ranks;
    uint64_t *counts = posting->buffers.lists; /* the lists of other collectives are as long */
    for (size_t rank = 0; rank < ranks; rank++)
        counts[rank] = (uint64_t)user_buffer_count(receive, rank);
    return outboard.ireduce_scatter(posting->group->members, from, into, counts, (int)reduction->operator,
                                    (int)reduction->element, &posting->posted);
}

static int post(struct posting *posting)
{
    const struct call *call = posting->call;
    outboard_group *members = posting->group->members;
    struct reduction reduction;
    if (!reduction_of(call->op, call->receive.type, &reduction))
        return MPI_ERR_OP; /* cannot happen: the operator was valid when it was measured */
    int op = (int)reduction.operator, element = (int)reduction.element;
    uint64_t count = (uint64_t)call->receive.count;
    const void *from = call->send.address == MPI_IN_PLACE ? OUTBOARD_IN_PLACE : non_null(call->send.address);
    void *into = non_null(call->receive.address);
    outboard_request **posted = &posting->posted;
    posting->buffers.send.total = posting->bytes;
    switch (call->collective) {
    case COLLECTIVE_reduce:
        return outcome_code(
            outboard.ireduce(members, from, into, count, op, element, (uint32_t)call->root, posted));
    case COLLECTIVE_allreduce:
        return outcome_code(outboard.iallreduce(members, from, into, count, op, element, posted));
    case COLLECTIVE_reduce_scatter:
        return outcome_code(scatter(posting, &reduction, from, into));
    case COLLECTIVE_reduce_scatter_block:
        return outcome_code(outboard.ireduce_scatter_block(members, from, into, count, op, element, posted));
    case COLLECTIVE_scan:
        return outcome_code(outboard.iscan(members, from, into, count, op, element, posted));
    default:
        return outcome_code(outboard.iexscan(members, from, into, count, op, element, posted));
    }
}

const struct method barrier_method = {measure_barrier, allows_barrier, false, set_no_buffers, post_barrier};
const struct method reduction_method = {measure, allows, true, set_no_buffers, post};
