/*
 * messages.c: measures a pattern of messages, the scatter-destination all-to-all, in two ways. "basic" is one
 * nonblocking call for each message. "recorded" is one call for a recording of all (see transport.h). Every byte of
 * every result is checked.
 *
 * Rank r sends to r + 1 first, and receives from r - 1 first. Its own block is not among the messages.
 *
 * A phase without messages comes first; it shows the cost of a phase itself. Two phases follow for each size and way.
 * In the first phase all ranks begin each repetition together, and repetitions are timed. In the second phase each rank
 * calls again as soon as it can, and the counters cover the calls alone. Rank 0 sends the harness "begin" and "end"
 * around each phase whose counters are read, then the samples as JSON.
 */
#include "calls.h"
#include "control.h"
#include "repetitions.h"
#include "transport.h"

#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2 };
enum way { BASIC, RECORDED, WAYS };
static const char *const way_names[WAYS] = {"basic", "recorded"};

/* One repetition on one rank. All fields are doubles, because samples travel by transport_exchange. */
struct sample {
    double elapsed_ms;
    double cpu_s;     /* processor time of all threads */
    double wrong;     /* 1 when a byte of the result was wrong */
    double post_us;   /* processor time of the rank's own thread to post */
    double ending_us; /* processor time of the rank's own thread to wait */
};
enum { SAMPLE_DOUBLES = sizeof(struct sample) / sizeof(double) };

/* A pattern of messages, and the way to move it. */
struct pattern {
    enum way way;
    size_t bytes;
    struct buffers buffers;
    struct transport_message *messages;
    int count;
};

static void scatter_destinations(struct pattern *pattern)
{
    const uint32_t ranks = transport_ranks(), rank = transport_rank();
    pattern->count = 0;
    for (uint32_t step = 1; step < ranks; step++) {
        const uint32_t to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        pattern->messages[pattern->count++] = (struct transport_message){
            .peer = from,
            .memory = (char *)pattern->buffers.receive + from * pattern->bytes,
            .bytes = pattern->bytes,
        };
        pattern->messages[pattern->count++] = (struct transport_message){
            .sent = 1,
            .peer = to,
            .memory = (char *)pattern->buffers.send + to * pattern->bytes,
            .bytes = pattern->bytes,
        };
    }
}

/* One repetition. All ranks begin it together after `refill_ns`; if `refill_ns` is 0, it begins at once. */
static struct sample repeat(const struct pattern *pattern, int64_t refill_ns)
{
    static uint64_t number;
    const struct call call = {
        .what = call_named("alltoall"),
        .bytes = pattern->bytes,
        .number = ++number,
        .silent_rank = -1,
    };
    const size_t own = transport_rank() * pattern->bytes;
    call_fill(&call, &pattern->buffers);
    memcpy((char *)pattern->buffers.receive + own, (char *)pattern->buffers.send + own, pattern->bytes);
    if (refill_ns > 0)
        clock_sleep_until_ns(agree_start(refill_ns));
    const int64_t cpu = process_cpu_ns();
    const int64_t start = clock_now_ns();
    const int64_t thread = thread_cpu_before_ns();
    if (pattern->way == BASIC)
        transport_messages(pattern->messages, pattern->count);
    else
        transport_start_recorded();
    const int64_t thread_posted = thread_cpu_ns();
    transport_wait();
    const int64_t end = clock_now_ns();
    const int64_t thread_end = thread_cpu_ns();
    const int64_t cpu_end = process_cpu_ns();
    /* Checking the result takes a core for milliseconds. Another rank may still need this core to notice its own
     * end. */
    if (refill_ns > 0)
        transport_barrier();
    return (struct sample){
        .elapsed_ms = (double)(end - start) / 1e6,
        .cpu_s = (double)(cpu_end - cpu) / 1e9,
        .wrong = call_wrong(&call, &pattern->buffers),
        .post_us = (double)(thread_posted - thread) / 1e3,
        .ending_us = (double)(thread_end - thread_posted) / 1e3,
    };
}

static struct sample *run_timed(const struct common *common, const struct pattern *pattern)
{
    struct sample *mine = allocate(sizeof *mine * (size_t)common->repetitions);
    double wrong = 0;
    for (int at = 0; at < WARM_UP; at++)
        wrong += repeat(pattern, common->refill_ns).wrong;
    for (int at = 0; at < common->repetitions; at++)
        mine[at] = repeat(pattern, common->refill_ns);
    mine[0].wrong += wrong;
    struct sample *all = gather_doubles(mine, common->repetitions * SAMPLE_DOUBLES);
    free(mine);
    return all;
}

static struct sample *run_counted(const struct common *common, const struct pattern *pattern)
{
    struct sample *mine = allocate(sizeof *mine * (size_t)common->repetitions);
    harness_mark("begin");
    for (int at = 0; at < common->repetitions; at++)
        mine[at] = repeat(pattern, 0);
    harness_mark("end");
    struct sample *all = gather_doubles(mine, common->repetitions * SAMPLE_DOUBLES);
    free(mine);
    return all;
}

static struct field field_of(const struct common *common, const double *first)
{
    return (struct field){first, SAMPLE_DOUBLES, common->repetitions};
}

static void report(const struct common *common, const struct pattern *pattern, const struct sample *timed,
                   struct sample *counted)
{
    const size_t samples = transport_ranks() * (size_t)common->repetitions;
    const struct field wrong = field_of(common, &timed->wrong);
    FILE *row = row_begin();
    fprintf(row, "{\"way\":\"%s\",\"bytes\":%zu,", way_names[pattern->way], pattern->bytes);
    write_field(row, "slowest_ms", LARGEST, field_of(common, &timed->elapsed_ms));
    write_numbers(row, "post_us", &timed->post_us, samples, SAMPLE_DOUBLES);
    write_numbers(row, "ending_us", &timed->ending_us, samples, SAMPLE_DOUBLES);
    counted->wrong += total_of(&wrong);
    write_costs(row, field_of(common, &counted->cpu_s), field_of(common, &counted->wrong));
    fputc('}', row);
    row_send(row);
}

static void measure(const struct common *common, struct pattern *pattern)
{
    scatter_destinations(pattern);
    if (pattern->way == RECORDED)
        transport_record(pattern->messages, pattern->count);
    struct sample *timed = run_timed(common, pattern);
    struct sample *counted = run_counted(common, pattern);
    report(common, pattern, timed, counted);
    free(timed);
    free(counted);
    if (pattern->way == RECORDED)
        transport_forget_recorded();
}

int main(int argc, char **argv)
{
    transport_start(&argc, &argv);
    const struct option own[] = {{.name = NULL}};
    const struct common common = read_common(argc, argv, own, "BYTES");
    struct pattern pattern = {
        .buffers = call_buffers(call_named("alltoall"), (size_t)largest_size(&common)),
        .messages = allocate(2 * sizeof *pattern.messages * transport_ranks()),
    };
    begin_measuring(&common);
    harness_mark("begin");
    harness_mark("end");
    for (int at = 0; at < common.sizes; at++)
        for (pattern.way = BASIC; pattern.way < WAYS; pattern.way++) {
            pattern.bytes = (size_t)*size_at(&common, at);
            measure(&common, &pattern);
        }
    transport_stop();
    return 0;
}
