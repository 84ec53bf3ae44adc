/*
 * collectives.c: the collectives of the fake: each is an exchange or a reduction (fake.c).
 */
#include <stdatomic.h>
#include <string.h>

#include "fake.h"

/* Calls that are offloaded if they have enough bytes, and calls that are always offloaded. */
#define OFFLOADS(name)                                                                                                 \
    int outboard_group_offloads_##name(const outboard_group *group, uint64_t bytes)                                    \
    {                                                                                                                  \
        static atomic_long least;                                                                                      \
        (void)group;                                                                                                   \
        if (atomic_load_explicit(&least, memory_order_relaxed) == 0)                                                   \
            atomic_store(&least, setting("OUTBOARD_FAKE_MIN_BYTES", 1));                                               \
        return bytes >= (uint64_t)atomic_load_explicit(&least, memory_order_relaxed);                                  \
    }
#define ALWAYS_OFFLOADS(name)                                                                                          \
    int outboard_group_offloads_##name(const outboard_group *group)                                                    \
    {                                                                                                                  \
        return group != NULL;                                                                                          \
    }
OFFLOADS(allgather)
OFFLOADS(allgatherv)
OFFLOADS(broadcast)
OFFLOADS(gather)
OFFLOADS(reduction)
ALWAYS_OFFLOADS(alltoallv)
ALWAYS_OFFLOADS(barrier)

int outboard_group_reduction_most(const outboard_group *group, uint64_t *bytes)
{
    *bytes = (uint64_t)(group->rank == 1 ? setting("OUTBOARD_FAKE_REDUCES", 1L << 40) : 1L << 40);
    return OUTBOARD_OK;
}

int outboard_group_offloads_alltoall(const outboard_group *group, uint64_t bytes_per_pair)
{
    return outboard_group_offloads_allgather(group, bytes_per_pair * group->ranks);
}

int outboard_ialltoallv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                        const uint64_t *send_offsets, void *receive, const uint64_t *receive_bytes,
                        const uint64_t *receive_offsets, outboard_request **posted)
{
    if (receive == NULL || send == NULL)
        return failure(OUTBOARD_ERR_ARGUMENT, "a buffer is NULL");
    size_t list = group->ranks * sizeof(uint64_t);
    uint64_t *blocks = malloc(2 * list);
    memcpy(blocks, receive_bytes, list);
    memcpy(blocks + group->ranks, receive_offsets, list);
    outboard_request *request = begin(group, receive);
    request->blocks = blocks;
    leave(request, send_bytes, list);
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        leave(request, (const char *)send + send_offsets[rank], send_bytes[rank]);
    return submit(request, posted);
}

/* An exchange in which every rank sends the same block to all. */
int outboard_iallgatherv(outboard_group *group, const void *send, void *receive, const uint64_t *bytes,
                         const uint64_t *offsets, outboard_request **posted)
{
    uint64_t sent[MOST_RANKS], from[MOST_RANKS] = {0};
    if (send == OUTBOARD_IN_PLACE)
        send = (char *)receive + offsets[group->rank];
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        sent[rank] = bytes[group->rank];
    return outboard_ialltoallv(group, send, sent, from, receive, bytes, offsets, posted);
}

/* A block for each rank, side by side. */
struct blocks {
    uint64_t bytes[MOST_RANKS], offsets[MOST_RANKS];
};

static struct blocks even_blocks(const outboard_group *group, uint64_t each)
{
    struct blocks even = {{0}, {0}};
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        even.bytes[rank] = each;
        even.offsets[rank] = rank * each;
    }
    return even;
}

int outboard_iallgather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank,
                        outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_iallgatherv(group, send, receive, even.bytes, even.offsets, posted);
}

int outboard_ialltoall(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_pair,
                       outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_pair);
    return outboard_ialltoallv(group, send, even.bytes, even.offsets, receive, even.bytes, even.offsets, posted);
}

/* A gather or scatter is an exchange in which all but the root have one block. */
int outboard_igatherv(outboard_group *group, const void *send, uint64_t send_bytes, void *receive,
                      const uint64_t *receive_bytes, const uint64_t *receive_offsets, uint32_t root,
                      outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, from[MOST_RANKS] = {0};
    bool is_root = group->rank == root;
    if (send == OUTBOARD_IN_PLACE) {
        if (!is_root)
            return failure(OUTBOARD_ERR_ARGUMENT, "in place, but not the root");
        send = (char *)receive + receive_offsets[root];
        send_bytes = receive_bytes[root];
    }
    sent[root] = send_bytes;
    return outboard_ialltoallv(group, send, sent, from, is_root ? receive : from, is_root ? receive_bytes : from,
                               is_root ? receive_offsets : from, posted);
}

int outboard_iscatterv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                       const uint64_t *send_offsets, void *receive, uint64_t receive_bytes, uint32_t root,
                       outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, nowhere[MOST_RANKS] = {0};
    bool is_root = group->rank == root, stays = receive == OUTBOARD_IN_PLACE;
    if (stays && !is_root)
        return failure(OUTBOARD_ERR_ARGUMENT, "in place, but not the root");
    if (is_root)
        memcpy(sent, send_bytes, group->ranks * sizeof *sent);
    if (stays)
        sent[root] = 0;
    received[root] = stays ? 0 : receive_bytes;
    return outboard_ialltoallv(group, is_root ? send : nowhere, sent, is_root ? send_offsets : nowhere, receive,
                               received, nowhere, posted);
}

int outboard_igather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                     outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_igatherv(group, send, bytes_per_rank, receive, even.bytes, even.offsets, root, posted);
}

int outboard_iscatter(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                      outboard_request **posted)
{
    const struct blocks even = even_blocks(group, bytes_per_rank);
    return outboard_iscatterv(group, send, even.bytes, even.offsets, receive, bytes_per_rank, root, posted);
}

/* An exchange in which the root sends the same block to all others. */
int outboard_ibroadcast(outboard_group *group, void *buffer, uint64_t bytes, uint32_t root, outboard_request **posted)
{
    uint64_t sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, nowhere[MOST_RANKS] = {0};
    if (root >= group->ranks)
        return failure(OUTBOARD_ERR_ARGUMENT, "no such root");
    for (uint32_t rank = 0; group->rank == root && rank < group->ranks; rank++)
        sent[rank] = rank == root ? 0 : bytes;
    received[root] = group->rank == root ? 0 : bytes;
    return outboard_ialltoallv(group, buffer, sent, nowhere, buffer, received, nowhere, posted);
}

/* An exchange of nothing: every call of the fake waits for all ranks. */
int outboard_ibarrier(outboard_group *group, outboard_request **posted)
{
    uint64_t nothing[MOST_RANKS] = {0};
    return outboard_ialltoallv(group, nothing, nothing, nothing, nothing, nothing, nothing, posted);
}

/* Every rank writes its vector of `elements` elements to its file. */
static int post_combined(outboard_group *group, const void *send, void *receive, uint64_t elements,
                         struct combined combined, outboard_request **posted)
{
    uint64_t bytes = elements * element_bytes(combined.op, combined.element);
    if (element_bytes(combined.op, combined.element) == 0)
        return failure(OUTBOARD_ERR_ARGUMENT, "no such operator or element");
    if (send == NULL || receive == NULL)
        return failure(OUTBOARD_ERR_ARGUMENT, "a buffer is NULL");
    outboard_request *request = begin(group, receive);
    request->combined = combined;
    own_operator_use(combined.op, 1);
    leave(request, send == OUTBOARD_IN_PLACE ? receive : send, bytes);
    return submit(request, posted);
}

int outboard_ireduce(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                     uint32_t root, outboard_request **posted)
{
    uint32_t to = group->rank == root ? group->ranks : 0;
    if (root >= group->ranks || (send == OUTBOARD_IN_PLACE && group->rank != root))
        return failure(OUTBOARD_ERR_ARGUMENT, "no such root, or in place elsewhere");
    return post_combined(group, send, receive, elements, (struct combined){op, element, 0, elements, 0, to}, posted);
}

int outboard_iallreduce(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                        outboard_request **posted)
{
    struct combined all = {op, element, 0, elements, 0, group->ranks};
    return post_combined(group, send, receive, elements, all, posted);
}

int outboard_ireduce_scatter(outboard_group *group, const void *send, void *receive, const uint64_t *counts, int op,
                             int element, outboard_request **posted)
{
    struct combined own = {op, element, 0, counts[group->rank], 0, group->ranks};
    uint64_t elements = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        own.first += rank < group->rank ? counts[rank] : 0;
        elements += counts[rank];
    }
    return post_combined(group, send, receive, elements, own, posted);
}

int outboard_ireduce_scatter_block(outboard_group *group, const void *send, void *receive, uint64_t elements, int op,
                                   int element, outboard_request **posted)
{
    uint64_t counts[MOST_RANKS];
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        counts[rank] = elements;
    return outboard_ireduce_scatter(group, send, receive, counts, op, element, posted);
}

int outboard_iscan(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                   outboard_request **posted)
{
    struct combined before = {op, element, 0, elements, 0, group->rank + 1};
    return post_combined(group, send, receive, elements, before, posted);
}

int outboard_iexscan(outboard_group *group, const void *send, void *receive, uint64_t elements, int op, int element,
                     outboard_request **posted)
{
    struct combined before = {op, element, 0, elements, 0, group->rank};
    return post_combined(group, send, receive, elements, before, posted);
}
