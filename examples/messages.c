/*
 * messages.c: tagged messages. Every rank sends two messages to the next rank, and receives the later one first: the
 * tag decides which message a receive takes.
 *
 *   make build
 *   gcc -Icrates/client/include examples/messages.c -Ltarget/release -Wl,-rpath,$PWD/target/release -loutboard
 *   target/release/outboard run -n 4 -- ./a.out
 */
#include <outboard.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBER = 1, SQUARE = 2, REQUESTS = 4 };

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
    outboard_request *requests[REQUESTS];
    uint32_t rank, ranks;

    check(outboard_init(&context, &world));
    check(outboard_group_rank(world, &rank));
    check(outboard_group_size(world, &ranks));
    uint32_t to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    uint64_t number = rank, square = rank * rank, their_number, their_square;
    check(outboard_isend(world, to, NUMBER, &number, sizeof number, &requests[0]));
    check(outboard_isend(world, to, SQUARE, &square, sizeof square, &requests[1]));
    check(outboard_ireceive(world, from, SQUARE, &their_square, sizeof their_square, &requests[2]));
    check(outboard_ireceive(world, from, NUMBER, &their_number, sizeof their_number, &requests[3]));
    for (int i = 0; i < REQUESTS; i++) {
        check(outboard_wait(requests[i], -1, NULL));
        check(outboard_request_free(requests[i]));
    }
    printf("rank %u received %lu and %lu\n", rank, (unsigned long)their_number, (unsigned long)their_square);
    check(outboard_group_destroy(world));
    return outboard_detach(context);
}
