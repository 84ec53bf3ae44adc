/*
 * report.c: the shim's report. Rank 0 writes it in MPI_Finalize if OUTBOARD_MPI_REPORT names a file or "stderr".
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "classes.h"
#include "shim.h"
#include "stats.h"
#include "trials.h"

enum {
    NANOSECONDS_POSTING,
    NANOSECONDS_WAITING,
    BYTES,
    PACKED,
    FAILED,
    ALLOCATED,
    DIGEST,
    COMMUNICATORS,
    SAVED, /* nanoseconds, may be negative */
    OFFLOADED_CALLS,
    PASSED_CALLS = OFFLOADED_CALLS + COLLECTIVES_KNOWN * FORMS,
    FIELDS = PASSED_CALLS + COLLECTIVES_KNOWN * FORMS
};

static atomic_ullong fields[FIELDS];
bool report_enabled;
static const char *choice = "";
static char native_reason_text[SHIM_MESSAGE_BYTES];

static void add_seconds(int field, double seconds)
{
    atomic_fetch_add_explicit(&fields[field], (unsigned long long)(seconds * 1e9), memory_order_relaxed);
}

static void add(int field, uint64_t amount)
{
    atomic_fetch_add_explicit(&fields[field], amount, memory_order_relaxed);
}

void report_enable(bool enabled, const char *choice_in_use)
{
    report_enabled = enabled;
    choice = choice_in_use;
}

void report_start(const char *native_reason)
{
    snprintf(native_reason_text, sizeof native_reason_text, "%s", native_reason == NULL ? "" : native_reason);
}

void report_count_passed(enum collective collective, enum form form)
{
    add(PASSED_CALLS + (int)collective * FORMS + (int)form, 1);
}

void report_add_passed_time(double seconds)
{
    add_seconds(NANOSECONDS_POSTING, seconds);
}

void report_choices(uint64_t digest, int communicators)
{
    add(DIGEST, digest);
    add(COMMUNICATORS, (uint64_t)communicators);
}

void report_add_posted(enum collective collective, enum form form, uint64_t bytes, bool packed, double seconds)
{
    add(OFFLOADED_CALLS + (int)collective * FORMS + (int)form, 1);
    add(BYTES, bytes);
    add(PACKED, packed);
    add_seconds(NANOSECONDS_POSTING, seconds);
}

void report_add_waiting(double seconds)
{
    add_seconds(NANOSECONDS_WAITING, seconds);
}

void report_count_failed(void)
{
    add(FAILED, 1);
}

void report_count_allocated(void)
{
    add(ALLOCATED, 1);
}

/* JSON strings must escape control characters, quotes and backslashes. */
static void write_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++) {
        unsigned char at = (unsigned char)*text;
        if (at == '"' || at == '\\')
            fprintf(to, "\\%c", at);
        else if (at < 0x20)
            fprintf(to, "\\u%04x", at);
        else
            fputc(at, to);
    }
    fputc('"', to);
}

static void write_rank(FILE *to, const unsigned long long *rank)
{
    static const char *const prefixes[FORMS] = {"", "i", ""}, *const suffixes[FORMS] = {"", "", "_start"};
    fputc('{', to);
    for (int field = 0; field < COLLECTIVES_KNOWN * FORMS; field++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", prefixes[field % FORMS], collective_names[field / FORMS],
                 suffixes[field % FORMS]);
        fprintf(to, "\"%s_offloaded\":%llu,\"%s_native\":%llu,", name, rank[OFFLOADED_CALLS + field], name,
                rank[PASSED_CALLS + field]);
    }
    fprintf(to, "\"bytes_contributed\":%llu,\"packed\":%llu,\"failed\":%llu,", rank[BYTES], rank[PACKED], rank[FAILED]);
    fprintf(to, "\"shared_allocations\":%llu,\"communicators\":%llu,", rank[ALLOCATED], rank[COMMUNICATORS]);
    fprintf(to, "\"choices_digest\":\"%016llx\",", rank[DIGEST]);
    fprintf(to, "\"posting_s\":%.6f,\"waiting_s\":%.6f}", (double)rank[NANOSECONDS_POSTING] * 1e-9,
            (double)rank[NANOSECONDS_WAITING] * 1e-9);
}

/* Writes the statistics of rank 0 by class and placement. */
static void write_choices(FILE *to)
{
    static const char *const path_names[PATHS] = {"native", "offloaded"};
    static const char *const reason_names[REASONS] = {"start", "built-in", "remembered", "tried"};
    const char *between = "";
    for (const struct class_stats *stats = stats_first(); stats != NULL; stats = stats->next, between = ",") {
        fprintf(to, "%s{\"collective\":\"%s\",\"form\":\"%s\",", between, collective_names[collective_of(stats->key)],
                form_names[form_of(stats->key)]);
        if (size_of(stats->key) == SIZE_UNKNOWN)
            fputs("\"size_class\":null,", to);
        else
            fprintf(to, "\"size_class\":%u,", size_of(stats->key));
        fprintf(to, "\"hosts\":%d,\"ranks_per_host\":%d,", stats->placement.hosts, stats->placement.ranks_per_host);
        for (enum path path = 0; path < PATHS; path++)
            fprintf(to, "\"calls_%s\":%llu,\"seconds_%s\":%.6f,\"median_%s_us\":%.3f,", path_names[path],
                    atomic_load(&stats->calls[path]), path_names[path],
                    (double)atomic_load(&stats->nanoseconds[path]) * 1e-9, path_names[path],
                    stats->estimate.seconds[path] * 1e6);
        fprintf(to, "\"way\":\"%s\",\"why\":\"%s\"}", path_names[stats->path], reason_names[stats->reason]);
    }
}

/* The mean over ranks of nanoseconds in this field, in seconds. */
static double mean_seconds(const unsigned long long *all, int ranks, int field)
{
    double sum = 0;
    for (int rank = 0; rank < ranks; rank++)
        sum += (double)(long long)all[(size_t)rank * FIELDS + (size_t)field];
    return sum / ranks * 1e-9;
}

static void write_all(const char *path, const unsigned long long *all, int ranks)
{
    double saved = mean_seconds(all, ranks, SAVED);
    double inside = mean_seconds(all, ranks, NANOSECONDS_POSTING) + mean_seconds(all, ranks, NANOSECONDS_WAITING);
    FILE *to = strcmp(path, "stderr") == 0 ? stderr : fopen(path, "w");
    if (to == NULL) {
        fprintf(stderr, "outboard: cannot write OUTBOARD_MPI_REPORT %s: %s\n", path, strerror(errno));
        return;
    }
    fprintf(to, "{\"ranks\":%d,\"offloading\":%s,\"native_because\":", ranks,
            native_reason_text[0] == '\0' ? "true" : "false");
    write_string(to, native_reason_text);
    fprintf(to, ",\"choice\":\"%s\",\"saved_s\":%.6f,\"in_collectives_s\":%.6f,\"choices\":[", choice, saved, inside);
    write_choices(to);
    fputs("],\"per_rank\":[", to);
    for (int rank = 0; rank < ranks; rank++) {
        fputs(rank == 0 ? "" : ",", to);
        write_rank(to, all + (size_t)rank * FIELDS);
    }
    fputs("]}\n", to);
    if (to != stderr)
        fclose(to);
    if (native_reason_text[0] == '\0')
        fprintf(stderr, "outboard: %.3f s of %.3f s in MPI saved\n", saved, inside);
}

void report_write(void)
{
    const char *path = getenv("OUTBOARD_MPI_REPORT");
    int rank, ranks;
    unsigned long long own[FIELDS], *all = NULL;
    if (!report_enabled)
        return;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    mpi.Comm_size(MPI_COMM_WORLD, &ranks);
    add(SAVED, (uint64_t)(int64_t)(stats_saved_seconds() * 1e9));
    for (int field = 0; field < FIELDS; field++)
        own[field] = atomic_load(&fields[field]);
    if (rank == 0)
        all = malloc((size_t)ranks * sizeof own);
    int allocated = rank != 0 || all != NULL;
    mpi.Bcast(&allocated, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!allocated)
        return;
    mpi.Gather(own, FIELDS, MPI_UNSIGNED_LONG_LONG, all, FIELDS, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0)
        write_all(path == NULL ? "stderr" : path, all, ranks);
    free(all);
}
