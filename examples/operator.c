/*
 * operator.c: an operator of one's own. Every rank contributes a line y = slope * x + offset, and an allreduce chains
 * the lines in the order of ranks. Chaining is associative but does not commute.
 *
 *   make build
 *   gcc -Icrates/client/include examples/operator.c -Ltarget/release -Wl,-rpath,$PWD/target/release -loutboard
 *   target/release/outboard run -n 4 -- ./a.out
 */
#include <outboard.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct line {
    int64_t slope, offset;
};

static void check(int code)
{
    if (code == OUTBOARD_OK)
        return;
    fprintf(stderr, "%s\n", outboard_last_error());
    exit(1);
}

/* `in` is from lower ranks than `inout`, so the lines of `in` come first. */
static void chain(const void *in, void *inout, size_t count, void *context)
{
    const struct line *first = in;
    struct line *then = inout;
    (void)context;
    for (size_t i = 0; i < count; i++) {
        then[i].offset += then[i].slope * first[i].offset;
        then[i].slope *= first[i].slope;
    }
}

int main(void)
{
    outboard_context *context;
    outboard_group *world;
    outboard_request *request;
    uint32_t rank;
    int chaining;

    check(outboard_init(&context, &world));
    check(outboard_group_rank(world, &rank));
    check(outboard_op_create(chain, sizeof(struct line), NULL, &chaining));
    struct line mine = {2, rank}, all;
    check(outboard_iallreduce(world, &mine, &all, 1, chaining, 0, &request));
    /* The service process gathers the lines; the rank computes here, and chains the lines while it waits. */
    check(outboard_wait(request, -1, NULL));
    printf("rank %u: y = %ld x + %ld\n", rank, (long)all.slope, (long)all.offset);
    check(outboard_request_free(request));
    check(outboard_op_free(chaining));
    check(outboard_group_destroy(world));
    return outboard_detach(context);
}
