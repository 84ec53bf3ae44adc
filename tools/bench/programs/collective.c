/*
 * collective.c: measures a nonblocking collective (see calls.h), with every byte of every result checked.
 *
 * Phases, in the manner of the OSU overlap benchmarks: first barriers; then for each size pure communication (post and
 * wait) and overall (post, compute loop, wait). Overall repetitions alternate with the compute loop alone. If a rank is
 * late, a phase of pure communication with that rank on time comes first. A repetition begins at an instant that all
 * ranks agree on, when the token buckets of the links are full again. Samples are exchanged after a phase, never within
 * a phase.
 *
 * Rank 0 sends the harness "begin" and "end" around each phase; the harness answers when it has read the counters. Then
 * rank 0 sends the samples, as JSON on one line.
 */
#include "calls.h"
#include "compute.h"
#include "control.h"
#include "repetitions.h"
#include "transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_UP = 2, OTHERS_POST_NS = 100 * 1000 };

struct options {
    struct common common;
    const struct collective *what;
    int late_rank;               /* -1: none */
    int64_t late_ns;
    int late_times;              /* 0: late by late_ns; else by this multiple of the pure time with the rank on time */
    int late_silent;             /* not 0: the late rank exchanges no blocks (alltoallv) */
};

/* Numbers of a size: bytes of a call, units of the compute loop, bytes of other ranks in the late rank's result. */
enum { BYTES, UNITS, MISSED };

/* One repetition on one rank. All fields are doubles, because samples travel by transport_exchange. */
struct sample {
    double post_ns;    /* instant when the rank posted */
    double end_ns;     /* instant when the rank had its result */
    double elapsed_ms; /* from the agreed start to the result */
    double called_ms;  /* from the agreed start to the rank's own post */
    double own_ms;     /* from the rank's own post to the result */
    double cpu_s;      /* processor time of all threads from start to end */
    double wrong;      /* 1 when a byte of the result was wrong */
    double post_us;    /* processor time of the rank's own thread to post */
    double ending_us;  /* processor time of the rank's own thread to wait */
    double loop_ms;    /* processor time of the rank's own thread in the compute loop */
};
enum { SAMPLE_DOUBLES = sizeof(struct sample) / sizeof(double) };

static struct options read_options(int argc, char **argv)
{
    struct options options = {.late_rank = -1};
    const char *what = "";
    const struct option own[] = {
        {"collective", .text = &what},
        {"late-rank", .number = &options.late_rank},
        {"late-ns", .long_number = &options.late_ns},
        {"late-times", .number = &options.late_times},
        {"late-silent", .number = &options.late_silent},
        {.name = NULL},
    };
    options.common = read_common(argc, argv, own, "BYTES:UNITS:MISSED");
    options.what = call_named(what);
    if (options.what == NULL)
        transport_fail("there is no collective %s", what);
    if (options.late_rank >= (int)transport_ranks())
        transport_fail("rank %d cannot be late: there are %u ranks", options.late_rank, transport_ranks());
    return options;
}

/* ---- repetitions ------------------------------------------------------------------------------------------------- */

/* One repetition; without `calls` it runs the compute loop alone. */
static struct sample repeat(const struct options *options, const struct buffers *buffers, size_t bytes, uint64_t units,
                            bool calls)
{
    static uint64_t number;
    const struct call call = {
        .what = options->what,
        .bytes = bytes,
        .number = ++number,
        .silent_rank = options->late_silent ? options->late_rank : -1,
    };
    call_fill(&call, buffers);
    clock_sleep_until_ns(agree_start(options->common.refill_ns));
    const int64_t cpu = process_cpu_ns();
    const int64_t start = clock_now_ns();
    if ((int)transport_rank() == options->late_rank)
        clock_sleep_until_ns(start + options->late_ns);
    const int64_t posted = clock_now_ns();
    const int64_t thread = thread_cpu_before_ns();
    if (calls)
        call_post(&call, buffers);
    const int64_t thread_posted = thread_cpu_ns();
    /* A rank that shares a core sleeps while the other ranks post. Otherwise each of them would post only after the
     * time slice of the previous rank. */
    if (options->common.main_core >= 0)
        clock_sleep_until_ns(clock_now_ns() + OTHERS_POST_NS);
    const int64_t thread_computes = thread_cpu_ns();
    if (units > 0)
        compute_units(units);
    const int64_t thread_waits = thread_cpu_before_ns();
    if (calls)
        transport_wait();
    const int64_t end = clock_now_ns();
    const int64_t thread_end = thread_cpu_ns();
    const int64_t cpu_end = process_cpu_ns();
    /* Checking the result takes a core for milliseconds. Another rank may still need this core to notice its own
     * end. */
    transport_barrier();
    return (struct sample){
        .post_ns = (double)posted,
        .end_ns = (double)end,
        .elapsed_ms = (double)(end - start) / 1e6,
        .called_ms = (double)(posted - start) / 1e6,
        .own_ms = (double)(end - posted) / 1e6,
        .cpu_s = (double)(cpu_end - cpu) / 1e9,
        .wrong = calls && call_wrong(&call, buffers),
        .post_us = (double)(thread_posted - thread) / 1e3,
        .ending_us = (double)(thread_end - thread_waits) / 1e3,
        .loop_ms = (double)(thread_waits - thread_computes) / 1e6,
    };
}

static struct sample repeat_barrier(const struct options *options)
{
    clock_sleep_until_ns(agree_start(options->common.refill_ns));
    const int64_t cpu = process_cpu_ns();
    const int64_t start = clock_now_ns();
    transport_barrier();
    const int64_t end = clock_now_ns();
    return (struct sample){
        .post_ns = (double)start,
        .end_ns = (double)end,
        .elapsed_ms = (double)(end - start) / 1e6,
        .cpu_s = (double)(process_cpu_ns() - cpu) / 1e9,
    };
}

/* ---- phases and their report ------------------------------------------------------------------------------------- */

static struct field field_of(const struct options *options, const double *first)
{
    return (struct field){first, SAMPLE_DOUBLES, options->common.repetitions};
}

/* Returns the samples of a phase; without `buffers` this is the barrier phase. If `alone` is given, each repetition is
 * followed by a repetition of the compute loop alone. So both have the same speed on a machine whose speed changes. */
static struct sample *run_phase(const struct options *options, const struct buffers *buffers, size_t bytes,
                                uint64_t units, struct sample **alone)
{
    const int repetitions = options->common.repetitions;
    struct sample *mine = allocate(sizeof *mine * (size_t)repetitions);
    struct sample *mine_alone = allocate(sizeof *mine_alone * (size_t)repetitions);
    double wrong_warm_up = 0;
    for (int at = 0; at < WARM_UP; at++) {
        wrong_warm_up +=
            (buffers == NULL ? repeat_barrier(options) : repeat(options, buffers, bytes, units, true)).wrong;
    }
    harness_mark("begin");
    for (int at = 0; at < repetitions; at++) {
        mine[at] = buffers == NULL ? repeat_barrier(options) : repeat(options, buffers, bytes, units, true);
        if (alone != NULL)
            mine_alone[at] = repeat(options, buffers, bytes, units, false);
    }
    harness_mark("end");
    mine[0].wrong += wrong_warm_up;
    struct sample *all = gather_doubles(mine, repetitions * SAMPLE_DOUBLES);
    if (alone != NULL)
        *alone = gather_doubles(mine_alone, repetitions * SAMPLE_DOUBLES);
    free(mine);
    free(mine_alone);
    if (buffers == NULL || call_synchronises(options->what))
        mark_early(field_of(options, &all->post_ns), field_of(options, &all->end_ns), &all->wrong);
    return all;
}

/* Times of the late rank and of the other ranks in each repetition; empty if no rank is late. */
static void report_late(FILE *row, const struct options *options, const struct sample *all)
{
    const int rank = options->late_rank, repetitions = rank >= 0 ? options->common.repetitions : 0;
    const struct sample *late = all + rank * (ptrdiff_t)repetitions;
    const struct field elapsed_ms = field_of(options, &all->elapsed_ms);
    write_numbers(row, "late_call_ms", &late->called_ms, (size_t)repetitions, SAMPLE_DOUBLES);
    write_numbers(row, "late_own_ms", &late->own_ms, (size_t)repetitions, SAMPLE_DOUBLES);
    fprintf(row, "\"late_others_ms\":[");
    for (int at = 0; at < repetitions; at++)
        fprintf(row, "%s%.6f", at > 0 ? "," : "", largest_but(&elapsed_ms, at, rank));
    fputs("],", row);
}

/* Writes `"PHASE":{...}`: the slowest rank's time in each repetition, the effect of a late rank, times of ranks' own
 * threads. Sums of processor time and of wrong results follow. */
static void report_phase(FILE *row, const char *phase, const struct options *options, const struct sample *all)
{
    const size_t samples = transport_ranks() * (size_t)options->common.repetitions;
    fprintf(row, "\"%s\":{", phase);
    write_field(row, "slowest_ms", LARGEST, field_of(options, &all->elapsed_ms));
    report_late(row, options, all);
    write_numbers(row, "post_us", &all->post_us, samples, SAMPLE_DOUBLES);
    write_numbers(row, "ending_us", &all->ending_us, samples, SAMPLE_DOUBLES);
    write_field(row, "loops_ms", SUM, field_of(options, &all->loop_ms));
    write_costs(row, field_of(options, &all->cpu_s), field_of(options, &all->wrong));
    fputc('}', row);
}

/* Least time, in each repetition, to copy the bytes of the late rank's result to which other ranks contribute. This is
 * processor time of the late rank's thread, because other ranks may poll on the same core meanwhile. */
static double *measure_copy(const struct options *options, const struct buffers *buffers, size_t copied)
{
    double *mine = allocate(sizeof *mine * (size_t)options->common.repetitions);
    double *all = allocate(sizeof *all * (size_t)options->common.repetitions * transport_ranks());
    if ((int)transport_rank() == options->late_rank) {
        unsigned char *from = allocate(copied + 1);
        memset(from, 1, copied);
        for (int at = 0; at < options->common.repetitions; at++) {
            const int64_t start = thread_cpu_ns();
            memcpy(buffers->receive, from, copied);
            /* Keeps the compiler from dropping a copy that nothing reads. */
            __asm__ volatile("" : : "r"(buffers->receive) : "memory");
            mine[at] = (double)(thread_cpu_ns() - start) / 1e6;
        }
        free(from);
    }
    transport_exchange(mine, all, options->common.repetitions);
    memcpy(mine, all + (size_t)options->late_rank * (size_t)options->common.repetitions,
           sizeof *mine * (size_t)options->common.repetitions);
    free(all);
    return mine;
}

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median of the slowest rank's times. The result is equal on all ranks, which have the same samples. */
static double median_slowest_ms(const struct options *options, const struct sample *all)
{
    const struct field elapsed_ms = field_of(options, &all->elapsed_ms);
    double *slowest = allocate(sizeof *slowest * (size_t)options->common.repetitions);
    for (int at = 0; at < options->common.repetitions; at++)
        slowest[at] = largest_but(&elapsed_ms, at, -1);
    qsort(slowest, (size_t)options->common.repetitions, sizeof *slowest, ascending);
    const double median = slowest[options->common.repetitions / 2];
    free(slowest);
    return median;
}

/* Reports how late the rank is at one size, and the samples with this rank on time. */
static void report_lateness(FILE *row, const struct options *options, const struct sample *punctual,
                            const double *copy_ms)
{
    fprintf(row, "\"lateness\":{\"by_ms\":%.6f,", (double)options->late_ns / 1e6);
    write_numbers(row, "copy_ms", copy_ms, (size_t)options->common.repetitions, 1);
    report_phase(row, "punctual", options, punctual);
    fprintf(row, "},");
}

static void measure_barrier(const struct options *options)
{
    struct sample *barriers = run_phase(options, NULL, 0, 0, NULL);
    FILE *row = row_begin();
    fputc('{', row);
    report_phase(row, "barrier", options, barriers);
    fputc('}', row);
    row_send(row);
    free(barriers);
}

static void measure_size(const struct options *given, const struct buffers *buffers, const int64_t *size)
{
    const size_t bytes = (size_t)size[BYTES];
    struct options of_size = *given;
    const struct options *const options = &of_size;
    struct sample *punctual = NULL;
    double *copy_ms = NULL;
    if (options->late_rank >= 0) {
        of_size.late_ns = 0;
        punctual = run_phase(options, buffers, bytes, 0, NULL);
        of_size.late_ns = options->late_times == 0
                              ? given->late_ns
                              : (int64_t)(options->late_times * median_slowest_ms(options, punctual) * 1e6);
        copy_ms = measure_copy(options, buffers, (size_t)size[MISSED]);
    }
    struct sample *alone = NULL;
    struct sample *pure = run_phase(options, buffers, bytes, 0, NULL);
    struct sample *overall = run_phase(options, buffers, bytes, (uint64_t)size[UNITS], &alone);
    FILE *row = row_begin();
    fprintf(row, "{\"bytes_per_rank\":%zu,", bytes);
    if (punctual != NULL)
        report_lateness(row, options, punctual, copy_ms);
    report_phase(row, "pure", options, pure);
    fputc(',', row);
    write_field(row, "paired_alone_ms", LARGEST, field_of(options, &alone->elapsed_ms));
    report_phase(row, "overall", options, overall);
    fputc('}', row);
    row_send(row);
    free(punctual);
    free(copy_ms);
    free(pure);
    free(overall);
    free(alone);
}

int main(int argc, char **argv)
{
    transport_start(&argc, &argv);
    const struct options options = read_options(argc, argv);
    const struct buffers buffers = call_buffers(options.what, (size_t)largest_size(&options.common));
    begin_measuring(&options.common);
    measure_barrier(&options);
    for (int at = 0; at < options.common.sizes; at++)
        measure_size(&options, &buffers, size_at(&options.common, at));
    transport_stop();
    return 0;
}
