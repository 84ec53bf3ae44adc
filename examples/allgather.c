/*
 * allgather.c: the smallest program. Every rank contributes one number and receives the numbers of all ranks.
 *
 *   make build
 *   gcc -Icrates/client/include examples/allgather.c -Ltarget/release -Wl,-rpath,$PWD/target/release -loutboard
 *   target/release/outboard run -n 4 -- ./a.out
 */
#include <outboard.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code)
{
    if (code == OUTBOARD_OK)
        return;
    fprintf(stderr, "%s\n", outboard_last_error());
    exit(1);
}

int main(void)
{
    outboard_context *context;
    outboard_group *world;
    outboard_request *request;
    uint32_t rank, ranks;

    check(outboard_init(&context, &world));
    check(outboard_group_rank(world, &rank));
    check(outboard_group_size(world, &ranks));
    uint64_t mine = rank * rank, *all = calloc(ranks, sizeof mine);
    check(outboard_iallgather(world, &mine, all, sizeof mine, &request));
    /* The service process gathers; the rank computes here. */
    check(outboard_wait(request, -1, NULL));
    for (uint32_t i = 0; rank == 0 && i < ranks; i++)
        printf("rank %u sent %lu\n", i, (unsigned long)all[i]);
    check(outboard_request_free(request));
    check(outboard_group_destroy(world));
    return outboard_detach(context);
}
