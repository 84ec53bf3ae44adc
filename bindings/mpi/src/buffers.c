/*
 * buffers.c: the buffers of a call in liboutboard's form: plain memory, with bytes and offsets by block.
 *
 * Blocks of plain memory are passed in place. Other blocks are packed one after another in one bounce buffer: first the
 * blocks to receive, then the blocks to send.
 */
#include <stdlib.h>

#include "buffers.h"
#include "memory.h"
#include "shim.h"
#include "unpack.h"

/* MPI_BOTTOM is NULL, so only the datatype says whether there is memory at its addresses. */
static bool is_null(const struct user_buffer *user_buffer)
{
    MPI_Count size, true_lb, true_extent;
    return user_buffer->address == NULL && user_buffer->types == NULL &&
           mpi.Type_size_x(user_buffer->type, &size) == MPI_SUCCESS && size > 0 &&
           mpi.Type_get_true_extent_x(user_buffer->type, &true_lb, &true_extent) == MPI_SUCCESS && true_lb == 0;
}

bool user_buffer_invalid(const struct user_buffer *user_buffer, int ranks)
{
    if (user_buffer->type == MPI_DATATYPE_NULL || user_buffer->address == MPI_IN_PLACE)
        return true;
    if (ranks == 0)
        return user_buffer->count < 0 || (user_buffer->count > 0 && is_null(user_buffer));
    if (user_buffer->counts == NULL || user_buffer->displacements == NULL)
        return true;
    for (int rank = 0; rank < ranks; rank++)
        if (user_buffer_count(user_buffer, rank) < 0 ||
            (user_buffer->types != NULL && user_buffer->types[rank] == MPI_DATATYPE_NULL) ||
            (user_buffer->address == NULL && user_buffer_count(user_buffer, rank) > 0 && is_null(user_buffer)))
            return true;
    return false;
}

bool user_buffer_bytes(const struct user_buffer *user_buffer, uint64_t *bytes)
{
    MPI_Count size;
    return mpi.Type_size_x(user_buffer->type, &size) == MPI_SUCCESS &&
           !__builtin_mul_overflow((uint64_t)size, (uint64_t)user_buffer->count, bytes);
}

void buffer_set_run(struct buffer *buffer, const struct user_buffer *user_buffer, uint64_t elements)
{
    buffer->user = *user_buffer;
    buffer->user.counts = NULL;
    buffer->blocks = 1;
    buffer->elements = elements;
}

void buffer_set_blocks(struct buffer *buffer, const struct user_buffer *user_buffer, int ranks)
{
    if (user_buffer->counts == NULL) {
        buffer_set_run(buffer, user_buffer, (uint64_t)user_buffer->count * (uint64_t)ranks);
        return;
    }
    buffer->user = *user_buffer;
    buffer->blocks = ranks;
}

int buffer_set_block_of(struct buffer *buffer, const struct user_buffer *user_buffer, int rank)
{
    MPI_Count lb, extent;
    bool even = user_buffer->counts == NULL;
    int code = mpi.Type_get_extent_x(user_buffer->type, &lb, &extent);
    buffer_set_run(buffer, user_buffer, (uint64_t)(even ? user_buffer->count : user_buffer_count(user_buffer, rank)));
    int64_t elements = even ? rank * user_buffer->count : user_buffer_displacement(user_buffer, rank);
    buffer->user.address = address_plus(user_buffer->address, elements * extent);
    return code;
}

static uint64_t block_elements(const struct buffer *buffer, int block)
{
    return buffer->user.counts == NULL ? buffer->elements : (uint64_t)user_buffer_count(&buffer->user, block);
}

static int64_t block_offset(const struct buffer *buffer, int block)
{
    return buffer->user.counts == NULL ? 0 : user_buffer_displacement(&buffer->user, block) * buffer->extent;
}

static const struct shape *block_shape(const struct buffer *buffer, int block)
{
    return &buffer->shapes[buffer->user.types == NULL ? 0 : block];
}

static int find_shapes(struct buffer *buffer)
{
    MPI_Count lb;
    int code = mpi.Type_get_extent_x(buffer->user.type, &lb, &buffer->extent);
    for (int block = 0; code == MPI_SUCCESS && block < (buffer->user.types == NULL ? 1 : buffer->blocks); block++)
        code = shape_of(user_buffer_type(&buffer->user, block), &buffer->shapes[block]);
    return code;
}

/* Whether the block's bytes lie in memory without gaps and in order. */
static bool block_is_plain(const struct buffer *buffer, int block)
{
    const struct shape *shape = block_shape(buffer, block);
    uint64_t elements = block_elements(buffer, block);
    return elements == 0 || shape->no_gaps || (shape->contiguous && elements == 1);
}

/* Computes bytes and offsets. Returns an MPI error code. */
static int place_blocks(struct buffer *buffer)
{
    if (buffer->blocks == 0)
        return MPI_SUCCESS;
    int code = find_shapes(buffer);
    if (code != MPI_SUCCESS)
        return code;
    int64_t first = INT64_MAX;
    buffer->packed = buffer->must_pack;
    for (int block = 0; block < buffer->blocks; block++) {
        int64_t start = block_offset(buffer, block) + block_shape(buffer, block)->true_lb;
        buffer->packed = buffer->packed || !block_is_plain(buffer, block);
        buffer->bytes[block] = block_elements(buffer, block) * block_shape(buffer, block)->size;
        buffer->offsets[block] = buffer->total;
        buffer->total += buffer->bytes[block];
        if (buffer->bytes[block] > 0 && start < first)
            first = start;
    }
    if (buffer->packed || first == INT64_MAX)
        return MPI_SUCCESS;
    for (int block = 0; block < buffer->blocks; block++) {
        int64_t start = block_offset(buffer, block) + block_shape(buffer, block)->true_lb;
        buffer->offsets[block] = buffer->bytes[block] > 0 ? (uint64_t)(start - first) : 0;
    }
    buffer->memory = address_plus(buffer->user.address, first);
    return MPI_SUCCESS;
}

static int pack_buffer(struct buffer *buffer)
{
    int code = MPI_SUCCESS;
    for (int block = 0; block < buffer->blocks && code == MPI_SUCCESS; block++)
        code = convert_elements(true, address_plus(buffer->user.address, block_offset(buffer, block)),
                                block_elements(buffer, block), user_buffer_type(&buffer->user, block),
                                block_shape(buffer, block),
                                address_plus(buffer->memory, (int64_t)buffer->offsets[block]));
    return code;
}

/* Makes room for packed blocks. */
static int allocate_packed(struct buffers *buffers)
{
    struct buffer *send = &buffers->send, *receive = &buffers->receive;
    if (!send->packed && !receive->packed)
        return MPI_SUCCESS;
    int count = receive->packed ? receive->blocks : 0;
    struct piece *pieces = calloc((size_t)count + 1, sizeof *pieces);
    if (pieces == NULL)
        return MPI_ERR_NO_MEM;
    for (int block = 0; block < count; block++)
        pieces[block] = (struct piece){block_offset(receive, block), block_elements(receive, block),
                                       user_buffer_type(&receive->user, block), *block_shape(receive, block)};
    uint64_t arrives = receive->packed ? receive->total : 0, leaves = send->packed ? send->total : 0;
    int code = unpack_prepare(&buffers->unpack, receive->user.address, pieces, count, arrives + leaves);
    if (code != MPI_SUCCESS)
        return code;
    if (receive->packed)
        receive->memory = buffers->unpack.bounce;
    if (!send->packed)
        return MPI_SUCCESS;
    send->memory = address_plus(buffers->unpack.bounce, (int64_t)arrives);
    return pack_buffer(send);
}

int buffers_prepare(struct buffers *buffers, int ranks)
{
    size_t list = (size_t)ranks; /* a neighbour may occur more than once */
    if (list < (size_t)buffers->send.blocks)
        list = (size_t)buffers->send.blocks;
    if (list < (size_t)buffers->receive.blocks)
        list = (size_t)buffers->receive.blocks;
    uint64_t *lists = buffers->lists = calloc(4 * list, sizeof *lists);
    buffers->shapes = malloc(2 * (list + 1) * sizeof *buffers->shapes);
    if (lists == NULL || buffers->shapes == NULL)
        return MPI_ERR_NO_MEM;
    buffers->send.bytes = lists;
    buffers->send.offsets = lists + list;
    buffers->receive.bytes = lists + 2 * list;
    buffers->receive.offsets = lists + 3 * list;
    buffers->send.shapes = buffers->shapes;
    buffers->receive.shapes = buffers->shapes + list + 1;
    int code = place_blocks(&buffers->receive);
    if (code == MPI_SUCCESS)
        code = place_blocks(&buffers->send);
    return code == MPI_SUCCESS ? allocate_packed(buffers) : code;
}

void buffers_free_lists(struct buffers *buffers)
{
    free(buffers->lists);
    free(buffers->shapes);
    free(buffers->sorted);
    buffers->lists = NULL;
    buffers->shapes = NULL;
    buffers->sorted = NULL;
}

void *buffer_memory(const struct buffer *buffer)
{
    static unsigned char nothing[1];
    return buffer->memory == NULL || buffer->total == 0 ? nothing : buffer->memory;
}
