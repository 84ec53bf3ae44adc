/*
 * sides.c: the buffers of a call in liboutboard's form: plain memory, with bytes and offsets by block.
 *
 * Blocks of plain memory are passed in place. Other blocks are packed one after another in one bounce buffer: first the
 * blocks to receive, then the blocks to send.
 */
#include <stdlib.h>

#include "shim.h"

bool given_unsound(const struct given *given, int ranks)
{
    if (given->type == MPI_DATATYPE_NULL)
        return true;
    if (ranks == 0)
        return given->count < 0;
    if (given->counts == NULL || given->displacements == NULL)
        return true;
    for (int rank = 0; rank < ranks; rank++)
        if (given->counts[rank] < 0)
            return true;
    return false;
}

bool given_bytes(const struct given *given, uint64_t *bytes)
{
    MPI_Count size;
    return PMPI_Type_size_x(given->type, &size) == MPI_SUCCESS &&
           !__builtin_mul_overflow((uint64_t)size, (uint64_t)given->count, bytes);
}

void side_run(struct side *side, const struct given *given, uint64_t elements)
{
    side->given = *given;
    side->given.counts = NULL;
    side->blocks = 1;
    side->elements = elements;
}

void side_of_all(struct side *side, const struct given *given, int ranks)
{
    if (given->counts == NULL) {
        side_run(side, given, (uint64_t)given->count * (uint64_t)ranks);
        return;
    }
    side->given = *given;
    side->blocks = ranks;
}

int side_of_rank(struct side *side, const struct given *given, int rank)
{
    MPI_Count lb, extent;
    bool even = given->counts == NULL;
    int code = PMPI_Type_get_extent_x(given->type, &lb, &extent);
    side_run(side, given, (uint64_t)(even ? given->count : given->counts[rank]));
    int64_t elements = even ? (int64_t)rank * given->count : given->displacements[rank];
    side->given.buffer = moved(given->buffer, elements * extent);
    return code;
}

static uint64_t count_of(const struct side *side, int block)
{
    return side->given.counts == NULL ? side->elements : (uint64_t)side->given.counts[block];
}

static int64_t offset_of(const struct side *side, int block)
{
    return side->given.counts == NULL ? 0 : side->given.displacements[block] * side->extent;
}

/* Computes bytes and offsets. Returns an MPI error code. */
static int measure(struct side *side)
{
    MPI_Count lb;
    if (side->blocks == 0)
        return MPI_SUCCESS;
    int code = shape_of(side->given.type, &side->shape);
    if (code == MPI_SUCCESS)
        code = PMPI_Type_get_extent_x(side->given.type, &lb, &side->extent);
    if (code != MPI_SUCCESS)
        return code;
    bool single = side->given.counts == NULL && side->elements == 1;
    side->packed = side->must_pack || !(side->shape.stackable || (side->shape.solid && single));
    int64_t first = INT64_MAX;
    for (int block = 0; block < side->blocks; block++) {
        side->bytes[block] = count_of(side, block) * side->shape.size;
        side->offsets[block] = side->total;
        side->total += side->bytes[block];
        if (side->bytes[block] > 0 && offset_of(side, block) < first)
            first = offset_of(side, block);
    }
    if (side->packed || first == INT64_MAX)
        return MPI_SUCCESS;
    for (int block = 0; block < side->blocks; block++)
        side->offsets[block] = side->bytes[block] > 0 ? (uint64_t)(offset_of(side, block) - first) : 0;
    side->memory = moved(side->given.buffer, first + side->shape.true_lb);
    return MPI_SUCCESS;
}

static int pack_side(struct side *side)
{
    int code = MPI_SUCCESS;
    for (int block = 0; block < side->blocks && code == MPI_SUCCESS; block++)
        code = convert_elements(true, moved(side->given.buffer, offset_of(side, block)), count_of(side, block),
                                side->given.type, &side->shape, moved(side->memory, (int64_t)side->offsets[block]));
    return code;
}

/* Makes room for packed blocks. */
static int make_room(struct sides *sides)
{
    struct side *send = &sides->send, *receive = &sides->receive;
    if (!send->packed && !receive->packed)
        return MPI_SUCCESS;
    int count = receive->packed ? receive->blocks : 0;
    struct piece *pieces = calloc((size_t)count + 1, sizeof *pieces);
    if (pieces == NULL)
        return MPI_ERR_NO_MEM;
    for (int block = 0; block < count; block++)
        pieces[block] = (struct piece){offset_of(receive, block), count_of(receive, block)};
    uint64_t arrives = receive->packed ? receive->total : 0, leaves = send->packed ? send->total : 0;
    const struct side *typed = receive->packed ? receive : send;
    int code = landing_start(&sides->landing, receive->given.buffer, pieces, count, typed->given.type, &typed->shape,
                             arrives + leaves);
    if (code != MPI_SUCCESS)
        return code;
    if (receive->packed)
        receive->memory = sides->landing.bounce;
    if (!send->packed)
        return MPI_SUCCESS;
    send->memory = moved(sides->landing.bounce, (int64_t)arrives);
    return pack_side(send);
}

int sides_begin(struct sides *sides, int ranks)
{
    size_t list = (size_t)ranks;
    uint64_t *lists = sides->lists = calloc(4 * list, sizeof *lists);
    if (lists == NULL)
        return MPI_ERR_NO_MEM;
    sides->send.bytes = lists;
    sides->send.offsets = lists + list;
    sides->receive.bytes = lists + 2 * list;
    sides->receive.offsets = lists + 3 * list;
    int code = measure(&sides->receive);
    if (code == MPI_SUCCESS)
        code = measure(&sides->send);
    return code == MPI_SUCCESS ? make_room(sides) : code;
}

void sides_end(struct sides *sides)
{
    free(sides->lists);
    sides->lists = NULL;
}

void *side_memory(const struct side *side)
{
    static unsigned char nothing[1];
    return side->memory == NULL || side->total == 0 ? nothing : side->memory;
}
