/* calls.c: see calls.h. */
#include "calls.h"

#include "transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum ranks { NOBODY, EVERYBODY, ROOT, ALL_BUT_ROOT, BOTH_ENDS };

enum { ROOT_RANK = 0, WORD = sizeof(uint64_t) };

/* What a block of a result is made of. */
enum result {
    BLOCKS,      /* one block, or one of every rank, as it was sent */
    SUM_OF_ALL,  /* the sum over all ranks */
    SUM_UP_TO_ME /* the sum over the ranks up to this one */
};

struct collective {
    const char *name;
    enum ranks givers;
    bool block_for_each;  /* a giver has a block for every rank, not one for all */
    enum ranks getters;
    bool block_of_each;   /* a result has a block of every rank, not one */
    enum result result;
    bool whole_is_cut;    /* the bytes of a call are those of all blocks together */
    void (*post)(const struct call *call, const struct buffers *buffers, size_t block);
};

static bool is_among(enum ranks ranks, uint32_t rank)
{
    const bool root = rank == ROOT_RANK, last = rank == transport_ranks() - 1;
    switch (ranks) {
    case EVERYBODY:
        return true;
    case ROOT:
        return root;
    case ALL_BUT_ROOT:
        return !root;
    case BOTH_ENDS:
        return root || last;
    case NOBODY:
        break;
    }
    return false;
}

static size_t block_bytes(const struct collective *what, size_t bytes)
{
    return what->whole_is_cut ? bytes / transport_ranks() : bytes;
}

static bool is_silent(const struct call *call, uint32_t rank)
{
    return (int)rank == call->silent_rank;
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

/* Blocks of one size side by side, none between a silent rank and any. */
static const struct transport_blocks *even_blocks(const struct call *call, size_t block)
{
    static struct transport_blocks blocks;
    const bool own_silent = is_silent(call, transport_rank());
    if (blocks.bytes == NULL) {
        blocks.bytes = calloc(transport_ranks(), sizeof *blocks.bytes);
        blocks.at = calloc(transport_ranks(), sizeof *blocks.at);
        if (blocks.bytes == NULL || blocks.at == NULL)
            transport_fail("no memory for the blocks of %u ranks", transport_ranks());
    }
    for (uint32_t rank = 0; rank < transport_ranks(); rank++) {
        blocks.bytes[rank] = own_silent || is_silent(call, rank) ? 0 : block;
        blocks.at[rank] = rank * block;
    }
    return &blocks;
}

static void post_allgather(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_allgather(buffers->send, buffers->receive, block);
}

static void post_allgatherv(const struct call *call, const struct buffers *buffers, size_t block)
{
    transport_allgatherv(buffers->send, buffers->receive, even_blocks(call, block));
}

static void post_alltoall(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_alltoall(buffers->send, buffers->receive, block);
}

static void post_alltoallv(const struct call *call, const struct buffers *buffers, size_t block)
{
    const struct transport_blocks *blocks = even_blocks(call, block);
    transport_alltoallv(buffers->send, blocks, buffers->receive, blocks);
}

static void post_broadcast(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_broadcast(transport_rank() == ROOT_RANK ? buffers->send : buffers->receive, block, ROOT_RANK);
}

static void post_gather(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_gather(buffers->send, buffers->receive, block, ROOT_RANK);
}

static void post_gatherv(const struct call *call, const struct buffers *buffers, size_t block)
{
    transport_gatherv(buffers->send, buffers->receive, even_blocks(call, block), ROOT_RANK);
}

static void post_scatter(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_scatter(buffers->send, buffers->receive, block, ROOT_RANK);
}

static void post_scatterv(const struct call *call, const struct buffers *buffers, size_t block)
{
    transport_scatterv(buffers->send, even_blocks(call, block), buffers->receive, ROOT_RANK);
}

static void post_reduce(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_reduce(buffers->send, buffers->receive, block / WORD, ROOT_RANK);
}

static void post_allreduce(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_allreduce(buffers->send, buffers->receive, block / WORD);
}

static void post_reduce_scatter(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_reduce_scatter_block(buffers->send, buffers->receive, block / WORD);
}

static void post_scan(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    transport_scan(buffers->send, buffers->receive, block / WORD);
}

static void post_barrier(const struct call *call, const struct buffers *buffers, size_t block)
{
    (void)call;
    (void)buffers;
    (void)block;
    transport_ibarrier();
}

static void post_ping_pong(const struct call *call, const struct buffers *buffers, size_t block)
{
    const uint32_t last = transport_ranks() - 1;
    (void)call;
    if (transport_rank() == ROOT_RANK) {
        transport_send(last, buffers->send, block);
        transport_receive(last, buffers->receive, block);
    } else if (transport_rank() == last) {
        transport_receive(ROOT_RANK, buffers->receive, block);
        transport_send(ROOT_RANK, buffers->receive, block);
    }
}

static const struct collective collectives[] = {
    {"allgather", EVERYBODY, false, EVERYBODY, true, BLOCKS, false, post_allgather},
    {"allgatherv", EVERYBODY, false, EVERYBODY, true, BLOCKS, false, post_allgatherv},
    {"alltoall", EVERYBODY, true, EVERYBODY, true, BLOCKS, false, post_alltoall},
    {"alltoallv", EVERYBODY, true, EVERYBODY, true, BLOCKS, false, post_alltoallv},
    {"broadcast", ROOT, false, ALL_BUT_ROOT, false, BLOCKS, false, post_broadcast},
    {"gather", EVERYBODY, false, ROOT, true, BLOCKS, false, post_gather},
    {"gatherv", EVERYBODY, false, ROOT, true, BLOCKS, false, post_gatherv},
    {"scatter", ROOT, true, EVERYBODY, false, BLOCKS, false, post_scatter},
    {"scatterv", ROOT, true, EVERYBODY, false, BLOCKS, false, post_scatterv},
    {"reduce", EVERYBODY, false, ROOT, false, SUM_OF_ALL, false, post_reduce},
    {"allreduce", EVERYBODY, false, EVERYBODY, false, SUM_OF_ALL, false, post_allreduce},
    {"reduce-scatter", EVERYBODY, true, EVERYBODY, false, SUM_OF_ALL, true, post_reduce_scatter},
    {"scan", EVERYBODY, false, EVERYBODY, false, SUM_UP_TO_ME, false, post_scan},
    {"barrier", NOBODY, false, NOBODY, false, BLOCKS, false, post_barrier},
    {"ping-pong", ROOT, false, BOTH_ENDS, false, BLOCKS, false, post_ping_pong},
};

/* ---- what is sent, and what must arrive -------------------------------------------------------------------------- */

/* Word `index` of a block in a call: differs by block, place and call, so that no stale or misplaced byte passes for
 * the right one. */
static uint64_t pattern(uint64_t block, uint64_t call, uint64_t index)
{
    uint64_t word = index + call * 0x100000001b3u + (block << 36);
    word = (word ^ (word >> 29)) * 0x9e3779b97f4a7c15u;
    return word ^ (word >> 32);
}

/* Number of the block that `source` has for `destination`: a number of its own where each gets another one. */
static uint64_t block_number(const struct collective *what, uint32_t source, uint32_t destination)
{
    return what->block_for_each ? (uint64_t)source * transport_ranks() + destination : source;
}

/* Word `index` of the block of this rank's result that has `source` to it; of a sum, all its ranks have. */
static uint64_t expected_word(const struct call *call, uint32_t source, uint64_t index)
{
    const struct collective *what = call->what;
    const uint32_t own = transport_rank();
    uint32_t first = source;
    uint32_t last = source;
    uint64_t sum = 0;
    if (what->result != BLOCKS) {
        first = 0;
        last = what->result == SUM_OF_ALL ? transport_ranks() - 1 : own;
    }
    for (uint32_t rank = first; rank <= last; rank++)
        sum += pattern(block_number(what, rank, own), call->number, index);
    return sum;
}

static bool block_wrong(const struct call *call, const unsigned char *received, size_t block, uint32_t source)
{
    for (size_t at = 0; at < block; at += WORD) {
        const uint64_t expected = expected_word(call, source, at / WORD);
        if (memcmp(received + at, &expected, block - at < WORD ? block - at : WORD) != 0) {
            fprintf(stderr, "rank %u: %s %" PRIu64 " of %zu bytes: wrong bytes at offset %zu of the block of rank %u\n",
                    transport_rank(), call->what->name, call->number, call->bytes, at, source);
            return true;
        }
    }
    return false;
}

const struct collective *call_named(const char *name)
{
    for (size_t at = 0; at < sizeof collectives / sizeof *collectives; at++)
        if (strcmp(name, collectives[at].name) == 0)
            return &collectives[at];
    return NULL;
}

/* Whole words, as patterns are written by words. */
static size_t whole_words(size_t bytes)
{
    return (bytes + WORD - 1) / WORD * WORD;
}

struct buffers call_buffers(const struct collective *what, size_t largest)
{
    const size_t block = block_bytes(what, largest);
    return (struct buffers){
        .send = transport_alloc(whole_words(block * (what->block_for_each ? transport_ranks() : 1))),
        .receive = transport_alloc(whole_words(block * (what->block_of_each ? transport_ranks() : 1))),
    };
}

void call_fill(const struct call *call, const struct buffers *buffers)
{
    const size_t block = block_bytes(call->what, call->bytes);
    const uint32_t blocks = call->what->block_for_each ? transport_ranks() : 1;
    if (!is_among(call->what->givers, transport_rank()))
        return;
    for (uint32_t destination = 0; destination < blocks; destination++) {
        unsigned char *to = (unsigned char *)buffers->send + destination * block;
        const uint64_t number = block_number(call->what, transport_rank(), destination);
        for (size_t at = 0; at < block; at += WORD) {
            const uint64_t word = pattern(number, call->number, at / WORD);
            memcpy(to + at, &word, block - at < WORD ? block - at : WORD);
        }
    }
}

void call_post(const struct call *call, const struct buffers *buffers)
{
    call->what->post(call, buffers, block_bytes(call->what, call->bytes));
}

bool call_wrong(const struct call *call, const struct buffers *buffers)
{
    const struct collective *what = call->what;
    const size_t block = block_bytes(what, call->bytes);
    const uint32_t sources = what->block_of_each ? transport_ranks() : 1;
    const unsigned char *result = buffers->receive;
    if (!is_among(what->getters, transport_rank()) || is_silent(call, transport_rank()))
        return false;
    for (uint32_t source = 0; source < sources; source++)
        if (!is_silent(call, source) && block_wrong(call, result + source * block, block, source))
            return true;
    return false;
}

bool call_synchronises(const struct collective *what)
{
    return what->post == post_barrier;
}
