/* calls.c: see calls.h. */
#include "calls.h"

#include "transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum ranks { NOBODY, EVERYBODY, ROOT, ALL_BUT_ROOT, BOTH_ENDS };

enum { ROOT_RANK = 0, WORD = sizeof(uint64_t) };

/* The content of a block of a result. */
enum result {
    BLOCKS,      /* one block, or one block of every rank, as sent */
    SUM_OF_ALL,  /* the sum over all ranks */
    SUM_UP_TO_ME /* the sum over the ranks up to this one */
};

enum kind { ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, BROADCAST, GATHER, GATHERV, SCATTER, SCATTERV, REDUCE,
            ALLREDUCE, REDUCE_SCATTER, SCAN, BARRIER, PING_PONG };

struct collective {
    const char *name;
    enum ranks givers;
    bool block_for_each;  /* a giver has a block for every rank, not one block for all ranks */
    enum ranks getters;
    bool block_of_each;   /* a result has a block of every rank, not just one block */
    enum result result;
    bool whole_is_cut;    /* the bytes of a call are the sum of all blocks */
    enum kind kind;
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

/* Blocks of equal size side by side; a block from or to a silent rank is empty. */
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

static void ping_pong(const struct buffers *buffers, size_t bytes)
{
    const uint32_t last = transport_ranks() - 1;
    if (transport_rank() == ROOT_RANK) {
        transport_send(last, buffers->send, bytes);
        transport_receive(last, buffers->receive, bytes);
    } else if (transport_rank() == last) {
        transport_receive(ROOT_RANK, buffers->receive, bytes);
        transport_send(ROOT_RANK, buffers->receive, bytes);
    }
}

static const struct collective collectives[] = {
    {"allgather", EVERYBODY, false, EVERYBODY, true, BLOCKS, false, ALLGATHER},
    {"allgatherv", EVERYBODY, false, EVERYBODY, true, BLOCKS, false, ALLGATHERV},
    {"alltoall", EVERYBODY, true, EVERYBODY, true, BLOCKS, false, ALLTOALL},
    {"alltoallv", EVERYBODY, true, EVERYBODY, true, BLOCKS, false, ALLTOALLV},
    {"broadcast", ROOT, false, ALL_BUT_ROOT, false, BLOCKS, false, BROADCAST},
    {"gather", EVERYBODY, false, ROOT, true, BLOCKS, false, GATHER},
    {"gatherv", EVERYBODY, false, ROOT, true, BLOCKS, false, GATHERV},
    {"scatter", ROOT, true, EVERYBODY, false, BLOCKS, false, SCATTER},
    {"scatterv", ROOT, true, EVERYBODY, false, BLOCKS, false, SCATTERV},
    {"reduce", EVERYBODY, false, ROOT, false, SUM_OF_ALL, false, REDUCE},
    {"allreduce", EVERYBODY, false, EVERYBODY, false, SUM_OF_ALL, false, ALLREDUCE},
    {"reduce-scatter", EVERYBODY, true, EVERYBODY, false, SUM_OF_ALL, true, REDUCE_SCATTER},
    {"scan", EVERYBODY, false, EVERYBODY, false, SUM_UP_TO_ME, false, SCAN},
    {"barrier", NOBODY, false, NOBODY, false, BLOCKS, false, BARRIER},
    {"ping-pong", ROOT, false, BOTH_ENDS, false, BLOCKS, false, PING_PONG},
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

/* Number of the block from `source` to `destination`. A block that all ranks receive has one number for all of them. */
static uint64_t block_number(const struct collective *what, uint32_t source, uint32_t destination)
{
    return what->block_for_each ? (uint64_t)source * transport_ranks() + destination : source;
}

/* Word `index` of the block from `source` in this rank's result; in a sum, the sum over all ranks that contribute. */
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

/* Rounded up to whole words, because patterns are written by words. */
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
    const size_t block = block_bytes(call->what, call->bytes);
    void *const send = buffers->send, *const receive = buffers->receive;
    switch (call->what->kind) {
    case ALLGATHER:
        return transport_allgather(send, receive, block);
    case ALLGATHERV:
        return transport_allgatherv(send, receive, even_blocks(call, block));
    case ALLTOALL:
        return transport_alltoall(send, receive, block);
    case ALLTOALLV:
        return transport_alltoallv(send, even_blocks(call, block), receive, even_blocks(call, block));
    case BROADCAST:
        return transport_broadcast(transport_rank() == ROOT_RANK ? send : receive, block, ROOT_RANK);
    case GATHER:
        return transport_gather(send, receive, block, ROOT_RANK);
    case GATHERV:
        return transport_gatherv(send, receive, even_blocks(call, block), ROOT_RANK);
    case SCATTER:
        return transport_scatter(send, receive, block, ROOT_RANK);
    case SCATTERV:
        return transport_scatterv(send, even_blocks(call, block), receive, ROOT_RANK);
    case REDUCE:
        return transport_reduce(send, receive, block / WORD, ROOT_RANK);
    case ALLREDUCE:
        return transport_allreduce(send, receive, block / WORD);
    case REDUCE_SCATTER:
        return transport_reduce_scatter_block(send, receive, block / WORD);
    case SCAN:
        return transport_scan(send, receive, block / WORD);
    case BARRIER:
        return transport_ibarrier();
    case PING_PONG:
        return ping_pong(buffers, block);
    }
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
    return what->kind == BARRIER;
}
