/* A rank in C: uses everything in outboard.h once and checks the results. Exits with the failing line. */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 5000 };

static void child_is_refused(outboard_context *context, outboard_group *group) {
    outboard_recorder *recorder;
    EXPECT(outboard_record_begin(group, &recorder) == OUTBOARD_OK);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        uint32_t rank;
        uint64_t most;
        outboard_context *own;
        outboard_recorded *recorded;
        EXPECT(outboard_group_rank(group, &rank) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_group_reduction_most(group, &most) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_record_barrier(recorder) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_record_end(recorder, &recorded) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_record_discard(recorder) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_group_destroy(group) == OUTBOARD_ERR_FORKED);
        EXPECT(outboard_detach(context) == OUTBOARD_ERR_FORKED);
        EXPECT(strstr(outboard_last_error(), "parent process") != NULL);
        EXPECT(outboard_attach(NULL, &own) == OUTBOARD_OK);
        EXPECT(own != context);
        EXPECT(outboard_detach(own) == OUTBOARD_OK);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    EXPECT(outboard_record_discard(recorder) == OUTBOARD_OK);
}

static void attaches_once(outboard_context **context) {
    outboard_context *again;
    EXPECT(outboard_abi_version() == OUTBOARD_ABI_VERSION);
    EXPECT(outboard_attach("/nonexistent", context) == OUTBOARD_ERR_NO_SERVICE);
    EXPECT(outboard_attach(NULL, NULL) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_attach(NULL, context) == OUTBOARD_OK);
    EXPECT(outboard_attach(NULL, &again) == OUTBOARD_OK && again == *context);
    EXPECT(outboard_detach(again) == OUTBOARD_OK);
    EXPECT(strcmp(outboard_memory_tier(*context), "cross-memory attach") == 0);
}

/* Gathers out of place and in place, and waits by every function. */
static void gathers_to_all(outboard_context *context, outboard_group *group, uint32_t rank) {
    static unsigned char send[BYTES], receive[2 * BYTES];
    outboard_request *requests[3] = {NULL, NULL, NULL};
    unsigned char *in_place;
    int done;
    EXPECT(outboard_group_offloads_allgather(group, BYTES) == 1);
    EXPECT(outboard_group_offloads_allgather(group, UINT64_MAX) == 0);
    EXPECT(outboard_alloc(context, 2 * BYTES, (void **)&in_place) == OUTBOARD_OK);
    memset(send, 'a' + (int)rank, BYTES);
    memset(in_place + rank * BYTES, 'A' + (int)rank, BYTES);
    EXPECT(outboard_iallgather(group, NULL, receive, BYTES, &requests[0]) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_iallgather(group, send, receive, BYTES, &requests[0]) == OUTBOARD_OK);
    EXPECT(outboard_iallgather(group, OUTBOARD_IN_PLACE, in_place, BYTES, &requests[2]) == OUTBOARD_OK);
    EXPECT(outboard_wait_some(requests, 3, 60000) == OUTBOARD_OK);
    do {
        EXPECT(outboard_test(requests[0], &done) == OUTBOARD_OK);
    } while (!done);
    EXPECT(outboard_wait(requests[2], 60000, &done) == OUTBOARD_OK && done == 1);
    for (uint32_t at = 0; at < 2 * BYTES; at++) {
        EXPECT(receive[at] == 'a' + at / BYTES);
        EXPECT(in_place[at] == 'A' + at / BYTES);
    }
    EXPECT(outboard_request_free(requests[0]) == OUTBOARD_OK);
    EXPECT(outboard_request_free(requests[2]) == OUTBOARD_OK);
    EXPECT(outboard_dealloc(context, in_place) == OUTBOARD_OK);
}

static void gathers_and_scatters(outboard_group *group, uint32_t rank) {
    static unsigned char send[BYTES], receive[2 * BYTES];
    unsigned char small[3] = {0}, mine[2] = {0};
    const uint64_t sizes[2] = {1, 2}, offsets[2] = {2, 0}, *at_root = rank == 0 ? sizes : NULL;
    outboard_request *request;
    memset(send, 'a' + (int)rank, BYTES);
    EXPECT(outboard_group_offloads_gather(group, BYTES) == 1);
    EXPECT(outboard_igather(group, send, receive, BYTES, 2, &request) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_igather(group, send, rank == 1 ? receive : NULL, BYTES, 1, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(rank == 0 || (receive[0] == 'a' && receive[2 * BYTES - 1] == 'b'));
    EXPECT(outboard_igatherv(group, send, rank + 1, small, at_root, offsets, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(rank == 1 || memcmp(small, "bba", 3) == 0);
    memcpy(small, "bba", 3);
    EXPECT(outboard_iscatterv(group, small, at_root, offsets, mine, rank + 1, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(memcmp(mine, rank == 0 ? "a" : "bb", rank + 1) == 0);
    void *to = rank == 0 ? (void *)OUTBOARD_IN_PLACE : mine;
    EXPECT(outboard_iscatter(group, rank == 0 ? "xy" : NULL, to, 1, 0, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(*mine == (rank == 0 ? 'a' : 'y'));
}

static void reduces(outboard_group *group, uint32_t rank) {
    double sum[2] = {rank + 0.5, 4.0}, own[2] = {rank + 0.5, 4.0}, before[2] = {-1.0, -1.0};
    outboard_request *requests[3];
    int done;
    EXPECT(outboard_group_offloads_barrier(group) == 1);
    EXPECT(outboard_group_offloads_reduction(group, UINT64_MAX) == 0);
    EXPECT(outboard_iallreduce(group, OUTBOARD_IN_PLACE, sum, 2, OUTBOARD_BIT_AND, OUTBOARD_F64, &requests[0]) ==
           OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_iallreduce(group, OUTBOARD_IN_PLACE, sum, 2, OUTBOARD_SUM, OUTBOARD_F64, &requests[0]) == OUTBOARD_OK);
    EXPECT(outboard_ibarrier(group, &requests[1]) == OUTBOARD_OK);
    EXPECT(outboard_iexscan(group, own, before, 2, OUTBOARD_SUM, OUTBOARD_F64, &requests[2]) == OUTBOARD_OK);
    for (int at = 0; at < 3; at++) {
        EXPECT(outboard_wait(requests[at], 60000, &done) == OUTBOARD_OK && done == 1);
        EXPECT(outboard_request_free(requests[at]) == OUTBOARD_OK);
    }
    EXPECT(sum[0] == 2.0 && sum[1] == 8.0);
    EXPECT(before[0] == (rank == 1 ? 0.5 : -1.0) && before[1] == (rank == 1 ? 4.0 : -1.0));
}

/* A group of this rank alone, made from its own offer. */
static void is_alone(outboard_context *context) {
    static unsigned char send[BYTES], receive[BYTES];
    unsigned char offer[OUTBOARD_OFFER_BYTES];
    outboard_group *alone;
    outboard_request *request;
    EXPECT(outboard_group_offer(context, offer) == OUTBOARD_OK);
    EXPECT(outboard_group_create(context, offer, 1, 0, &alone) == OUTBOARD_OK);
    child_is_refused(context, alone);
    EXPECT(outboard_group_deadline(alone, -1.0) == OUTBOARD_ERR_ARGUMENT);
    EXPECT(outboard_group_deadline(alone, 60.0) == OUTBOARD_OK);
    EXPECT(outboard_group_deadline(alone, 0.0) == OUTBOARD_OK);
    EXPECT(outboard_iallgather(alone, send, receive, BYTES, &request) == OUTBOARD_OK);
    wait_and_free(request);
    EXPECT(outboard_group_destroy(alone) == OUTBOARD_OK);
}

int main(void) {
    outboard_context *context;
    outboard_group *group;
    uint32_t rank, ranks;
    attaches_once(&context);
    EXPECT(outboard_group_world(context, &group) == OUTBOARD_OK);
    EXPECT(outboard_group_rank(group, &rank) == OUTBOARD_OK);
    EXPECT(outboard_group_size(group, &ranks) == OUTBOARD_OK && ranks == 2 && rank < 2);
    EXPECT(outboard_detach(context) == OUTBOARD_ERR_BUSY);
    gathers_to_all(context, group, rank);
    gathers_and_scatters(group, rank);
    reduces(group, rank);
    is_alone(context);
    EXPECT(outboard_group_destroy(group) == OUTBOARD_OK);
    EXPECT(outboard_detach(context) == OUTBOARD_OK);
    EXPECT(strcmp(outboard_strerror(OUTBOARD_OK), "success") == 0);
    return 0;
}
