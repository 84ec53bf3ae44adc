/*
 * batches.c: measures calls of a collective in a row (see calls.h). The calls are blocking (for Outboard: post and
 * wait), or nonblocking with a computation between post and wait. Each batch's last result is checked byte by byte.
 *
 * A batch is a number of calls with the same buffers, roots at rank 0. All ranks begin a batch behind a barrier, when
 * the token buckets of the links are full again. Just before, all ranks make the computations of the batch alone; the
 * harness subtracts the time of these computations from the time of the batch. The harness sets the number of calls of
 * a batch, or leaves the number to this program. The program then takes as many calls as last BATCH_NS without
 * computations, but at most CALLS_MAX.
 *
 * Batches without calls come first; they show the cost of a phase itself. Then there is a phase for each size. Rank 0
 * sends the harness "begin" and "end" around each phase, then the samples as JSON.
 */
#include "calls.h"
#include "compute.h"
#include "control.h"
#include "repetitions.h"
#include "transport.h"

#include <stdlib.h>

enum { WARM_UP = 2, WARM_UP_CALLS = 8, TRIES = 3, CALLS_MAX = 1000, BATCH_NS = 2 * 1000 * 1000,
       CALIBRATIONS = 20, CALIBRATION_UNITS = 2000 };

struct options {
    struct common common;
    const struct collective *what;
    int blocking; /* not 0: the blocking form, without computation */
};

/* The numbers of a size: bytes of a call, calls of a batch (0: to be found), processor time that each call computes. */
enum { BYTES, CALLS, COMPUTE_NS };

/* One batch on one rank. All fields are doubles, because samples travel by transport_exchange. */
struct sample {
    double start_ns;
    double end_ns;
    double took_ns;  /* from start to end */
    double alone_ns; /* time of the computations alone, just before */
    double cpu_s; /* processor time of all threads from start to end */
    double wrong; /* 1 when a byte of the last result was wrong */
};
enum { SAMPLE_DOUBLES = sizeof(struct sample) / sizeof(double) };

static struct options read_options(int argc, char **argv)
{
    struct options options = {0};
    const char *what = "";
    const struct option own[] = {
        {"collective", .text = &what},
        {"blocking", .number = &options.blocking},
        {.name = NULL},
    };
    options.common = read_common(argc, argv, own, "BYTES:CALLS:COMPUTE_NS");
    options.what = call_named(what);
    if (options.what == NULL)
        transport_fail("there is no collective %s", what);
    return options;
}

/* Units of the compute loop that take `compute_ns` on an idle processor. All ranks use the same number; otherwise the
 * slowest rank would compute least. */
static uint64_t units_of(int64_t compute_ns)
{
    static double unit_ns;
    if (compute_ns == 0)
        return 0;
    if (unit_ns == 0) {
        int64_t least = INT64_MAX;
        for (int at = 0; at < CALIBRATIONS; at++) {
            const int64_t start = thread_cpu_before_ns();
            compute_units(CALIBRATION_UNITS);
            const int64_t taken = thread_cpu_ns() - start;
            least = taken < least ? taken : least;
        }
        const double mine = (double)least / CALIBRATION_UNITS;
        double *all = gather_doubles(&mine, 1);
        unit_ns = all[0];
        for (uint32_t rank = 1; rank < transport_ranks(); rank++)
            unit_ns = all[rank] < unit_ns ? all[rank] : unit_ns;
        free(all);
    }
    return (uint64_t)((double)compute_ns / unit_ns);
}

/* A batch of calls of one size. */
struct batch {
    size_t bytes;
    int calls;
    int64_t compute_ns; /* processor time between post and wait of each call */
};

/* Time of a computation while all ranks compute and no rank calls. */
static int64_t compute_alone_ns(uint64_t units)
{
    transport_barrier();
    const int64_t start = clock_now_ns();
    compute_units(units);
    return clock_now_ns() - start;
}

static struct sample run_batch(const struct options *options, const struct buffers *buffers, const struct batch *batch)
{
    static uint64_t number;
    const uint64_t units = units_of(batch->compute_ns);
    const struct call call = {.what = options->what, .bytes = batch->bytes, .number = ++number, .silent_rank = -1};
    call_fill(&call, buffers);
    const int64_t alone_ns = units > 0 ? compute_alone_ns((uint64_t)batch->calls * units) : 0;
    clock_sleep_until_ns(agree_start(options->common.refill_ns));
    transport_barrier();
    const int64_t cpu = process_cpu_ns();
    const int64_t start = clock_now_ns();
    for (int at = 0; at < batch->calls; at++) {
        call_post(&call, buffers);
        compute_units(units);
        transport_wait();
    }
    const int64_t end = clock_now_ns();
    const int64_t cpu_end = process_cpu_ns();
    /* Checking the result takes a core for milliseconds. Another rank may still need this core to notice its own
     * end. */
    transport_barrier();
    return (struct sample){
        .start_ns = (double)start,
        .end_ns = (double)end,
        .took_ns = (double)(end - start),
        .alone_ns = (double)alone_ns,
        .cpu_s = (double)(cpu_end - cpu) / 1e9,
        .wrong = batch->calls > 0 && call_wrong(&call, buffers),
    };
}

static struct field field_of(const double *first, int batches)
{
    return (struct field){first, SAMPLE_DOUBLES, batches};
}

/* The shortest time of the slowest rank in some batches. The result is equal on all ranks, which have the same
 * samples. */
static double shortest_ns(const struct options *options, const struct buffers *buffers, const struct batch *batch)
{
    struct sample mine[TRIES];
    for (int at = 0; at < TRIES; at++)
        mine[at] = run_batch(options, buffers, batch);
    struct sample *all = gather_doubles(mine, TRIES * SAMPLE_DOUBLES);
    const struct field took_ns = field_of(&all->took_ns, TRIES);
    double shortest = largest_but(&took_ns, 0, -1);
    for (int at = 1; at < TRIES; at++) {
        const double next = largest_but(&took_ns, at, -1);
        shortest = next < shortest ? next : shortest;
    }
    free(all);
    return shortest;
}

/* Finds how many calls fit in the time of a batch. */
static void size_batch(const struct options *options, const struct buffers *buffers, struct batch *batch)
{
    batch->calls = WARM_UP_CALLS;
    run_batch(options, buffers, batch);
    batch->calls = 1;
    double elapsed_ns = shortest_ns(options, buffers, batch);
    while (elapsed_ns < BATCH_NS && batch->calls < CALLS_MAX) {
        /* The number of calls grows in steps, because a single call may be much slower than one of many. */
        batch->calls = 4 * batch->calls < CALLS_MAX ? 4 * batch->calls : CALLS_MAX;
        elapsed_ns = shortest_ns(options, buffers, batch);
    }
    const double wanted = batch->calls * (BATCH_NS / elapsed_ns);
    batch->calls = wanted < 1 ? 1 : wanted < CALLS_MAX ? (int)wanted : CALLS_MAX;
}

static void report(const struct options *options, const struct batch *batch, struct sample *all)
{
    const int batches = options->common.repetitions;
    const size_t samples = transport_ranks() * (size_t)batches;
    FILE *row = row_begin();
    if (call_synchronises(options->what))
        mark_early(field_of(&all->start_ns, batches), field_of(&all->end_ns, batches), &all->wrong);
    fprintf(row, "{\"bytes_per_rank\":%zu,\"calls\":%d,", batch->bytes, batch->calls);
    write_numbers(row, "start_ns", &all->start_ns, samples, SAMPLE_DOUBLES);
    write_numbers(row, "end_ns", &all->end_ns, samples, SAMPLE_DOUBLES);
    write_numbers(row, "alone_ns", &all->alone_ns, samples, SAMPLE_DOUBLES);
    write_costs(row, field_of(&all->cpu_s, batches), field_of(&all->wrong, batches));
    fputc('}', row);
    row_send(row);
}

/* Measures a phase; a phase without calls is not reported. */
static void measure(const struct options *options, const struct buffers *buffers, const struct batch *batch)
{
    struct sample *mine = allocate(sizeof *mine * (size_t)options->common.repetitions);
    double wrong_warm_up = 0;
    for (int at = 0; at < WARM_UP; at++)
        wrong_warm_up += run_batch(options, buffers, batch).wrong;
    harness_mark("begin");
    for (int at = 0; at < options->common.repetitions; at++)
        mine[at] = run_batch(options, buffers, batch);
    harness_mark("end");
    mine[0].wrong += wrong_warm_up;
    struct sample *all = gather_doubles(mine, options->common.repetitions * SAMPLE_DOUBLES);
    if (batch->calls > 0)
        report(options, batch, all);
    free(mine);
    free(all);
}

int main(int argc, char **argv)
{
    transport_start(&argc, &argv);
    const struct options options = read_options(argc, argv);
    const struct buffers buffers = call_buffers(options.what, (size_t)largest_size(&options.common));
    begin_measuring(&options.common);
    transport_blocking(options.blocking);
    measure(&options, &buffers, &(struct batch){0});
    for (int at = 0; at < options.common.sizes; at++) {
        const int64_t *size = size_at(&options.common, at);
        struct batch batch = {(size_t)size[BYTES], (int)size[CALLS], size[COMPUTE_NS]};
        if (batch.calls == 0)
            size_batch(&options, &buffers, &batch);
        measure(&options, &buffers, &batch);
    }
    transport_stop();
    return 0;
}
