/* Operators of the program in C: a product that does not commute, and rejected calls. Exits with the failing line. */
#include "expect.h"

enum { COUNT = 300 };

struct matrix {
    int64_t cells[2][2];
};

static struct matrix product(const struct matrix *left, const struct matrix *right) {
    struct matrix result;
    for (int row = 0; row < 2; row++)
        for (int column = 0; column < 2; column++)
            result.cells[row][column] = left->cells[row][0] * right->cells[0][column] +
                                        left->cells[row][1] * right->cells[1][column];
    return result;
}

/* Counts the pairs at `context`. */
static void multiply(const void *in, void *inout, size_t count, void *context) {
    const struct matrix *left = in;
    struct matrix *right = inout;
    for (size_t at = 0; at < count; at++)
        right[at] = product(&left[at], &right[at]);
    *(size_t *)context += count;
}

static struct matrix contribution(uint32_t rank, int at) {
    const struct matrix made = {{{1, (int64_t)rank + 2}, {at % 5, 3}}};
    return made;
}

/* The products of the contributions of ranks 0 to `last`. */
static struct matrix expected(uint32_t last, int at) {
    struct matrix left = contribution(0, at);
    for (uint32_t rank = 1; rank <= last; rank++) {
        const struct matrix right = contribution(rank, at);
        left = product(&left, &right);
    }
    return left;
}

static int is(const struct matrix *found, struct matrix wanted) {
    return memcmp(found, &wanted, sizeof wanted) == 0;
}

/* Posts every kind of reduction once. */
static void all_kinds(outboard_group *group, int op, uint32_t rank, uint32_t ranks) {
    static struct matrix own[2 * COUNT], found[2 * COUNT];
    const uint64_t counts[2] = {1, COUNT};
    outboard_request *request;
    for (int at = 0; at < 2 * COUNT; at++)
        own[at] = contribution(rank, at);
    EXPECT(ranks == 2);
    EXPECT(outboard_ireduce(group, own, found, COUNT, op, 0, 1, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(rank == 0 || is(&found[COUNT - 1], expected(1, COUNT - 1)));
    memcpy(found, own, sizeof own);
    EXPECT(outboard_iallreduce(group, OUTBOARD_IN_PLACE, found, COUNT, op, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    for (int at = 0; at < COUNT; at++)
        EXPECT(is(&found[at], expected(1, at)));
    EXPECT(outboard_ireduce_scatter(group, own, found, counts, op, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(is(&found[0], expected(1, rank == 0 ? 0 : 1)));
    EXPECT(outboard_ireduce_scatter_block(group, own, found, COUNT, op, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(is(&found[1], expected(1, (int)rank * COUNT + 1)));
    EXPECT(outboard_iscan(group, own, found, COUNT, op, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(is(&found[7], expected(rank, 7)));
    EXPECT(outboard_iexscan(group, own, found, 1, op, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(is(&found[0], rank == 0 ? expected(0, 0) : contribution(0, 0)));
}

int main(void) {
    outboard_context *context;
    outboard_group *group;
    outboard_request *request;
    uint32_t rank, ranks;
    int op, other, done;
    size_t pairs = 0;
    struct matrix one = contribution(0, 0), result;

    EXPECT(outboard_init(&context, &group) == OUTBOARD_OK);
    EXPECT(outboard_group_rank(group, &rank) == OUTBOARD_OK && outboard_group_size(group, &ranks) == OUTBOARD_OK);
    EXPECT(outboard_op_create(NULL, 1, NULL, &op) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_op_create(multiply, 0, NULL, &op) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(strstr(outboard_last_error(), "element_bytes") != NULL);
    EXPECT(outboard_op_create(multiply, sizeof one, &pairs, NULL) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_op_create(multiply, sizeof one, &pairs, &op) == OUTBOARD_OK);
    EXPECT(outboard_iallreduce(group, &one, &result, 1, op, OUTBOARD_F64, &request) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_iallreduce(group, &one, &result, 1, op + 1, 0, &request) == OUTBOARD_ERR_ARGUMENT);

    all_kinds(group, op, rank, ranks);
    EXPECT(pairs >= COUNT);

    EXPECT(outboard_iallreduce(group, &one, &result, 1, op, 0, &request) == OUTBOARD_OK);
    EXPECT(outboard_op_free(op) == OUTBOARD_ERR_BUSY);
    EXPECT(strstr(outboard_last_error(), "1 request") != NULL);
    EXPECT(outboard_wait(request, 60000, &done) == OUTBOARD_OK && done == 1);
    EXPECT(outboard_op_free(op) == OUTBOARD_OK);
    EXPECT(outboard_op_free(op) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_op_free(OUTBOARD_SUM) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_iallreduce(group, &one, &result, 1, op, 0, &request) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(strstr(outboard_last_error(), "outboard_op_create") != NULL);
    EXPECT(outboard_op_create(multiply, sizeof one, &pairs, &other) == OUTBOARD_OK && other != op);
    EXPECT(outboard_op_free(other) == OUTBOARD_OK);
    EXPECT(outboard_request_free(request) == OUTBOARD_OK);
    EXPECT(outboard_group_destroy(group) == OUTBOARD_OK);
    EXPECT(outboard_detach(context) == OUTBOARD_OK);
    return 0;
}
