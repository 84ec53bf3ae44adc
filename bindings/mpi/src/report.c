/*
 * report.c: what the shim did, written by rank 0 in MPI_Finalize where OUTBOARD_MPI_REPORT names a file or "stderr".
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum {
    NANOSECONDS_POSTING,
    NANOSECONDS_WAITING,
    BYTES,
    PACKED,
    FAILED,
    ALLOCATED,
    OFFLOADED,
    PASSED = OFFLOADED + COLLECTIVES_KNOWN * FORMS,
    FIELDS = PASSED + COLLECTIVES_KNOWN * FORMS
};

static atomic_ullong fields[FIELDS];
static char native_because[SHIM_SENTENCE];

static void add_seconds(int field, double seconds)
{
    atomic_fetch_add_explicit(&fields[field], (unsigned long long)(seconds * 1e9), memory_order_relaxed);
}

static void add(int field, uint64_t amount)
{
    atomic_fetch_add_explicit(&fields[field], amount, memory_order_relaxed);
}

void report_start(const char *why_native)
{
    snprintf(native_because, sizeof native_because, "%s", why_native == NULL ? "" : why_native);
}

void report_passed(enum collective collective, enum form form, double seconds)
{
    add(PASSED + (int)collective * FORMS + (int)form, 1);
    add_seconds(NANOSECONDS_POSTING, seconds);
}

void report_posted(enum collective collective, enum form form, uint64_t bytes, bool packed, double seconds)
{
    add(OFFLOADED + (int)collective * FORMS + (int)form, 1);
    add(BYTES, bytes);
    add(PACKED, packed);
    add_seconds(NANOSECONDS_POSTING, seconds);
}

void report_waited(double seconds)
{
    add_seconds(NANOSECONDS_WAITING, seconds);
}

void report_failed(void)
{
    add(FAILED, 1);
}

void report_allocated(void)
{
    add(ALLOCATED, 1);
}

/* JSON strings hold no control characters, quotes or backslashes unescaped. */
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
#define TEXT(Name, lower, ...) #lower,
    static const char *const names[COLLECTIVES_KNOWN] = {COLLECTIVES(TEXT)};
#undef TEXT
    static const char *const before[FORMS] = {"", "i", ""}, *const behind[FORMS] = {"", "", "_start"};
    fputc('{', to);
    for (int field = 0; field < COLLECTIVES_KNOWN * FORMS; field++) {
        const char *name = names[field / FORMS], *first = before[field % FORMS], *last = behind[field % FORMS];
        fprintf(to, "\"%s%s%s_offloaded\":%llu,\"%s%s%s_native\":%llu,", first, name, last, rank[OFFLOADED + field], first,
                name, last, rank[PASSED + field]);
    }
    fprintf(to, "\"bytes_contributed\":%llu,\"packed\":%llu,\"failed\":%llu,", rank[BYTES], rank[PACKED], rank[FAILED]);
    fprintf(to, "\"shared_allocations\":%llu,", rank[ALLOCATED]);
    fprintf(to, "\"posting_s\":%.6f,\"waiting_s\":%.6f}", (double)rank[NANOSECONDS_POSTING] * 1e-9,
            (double)rank[NANOSECONDS_WAITING] * 1e-9);
}

static void write_all(const char *path, const unsigned long long *all, int ranks)
{
    FILE *to = strcmp(path, "stderr") == 0 ? stderr : fopen(path, "w");
    if (to == NULL) {
        fprintf(stderr, "outboard: cannot write OUTBOARD_MPI_REPORT %s: %s\n", path, strerror(errno));
        return;
    }
    fprintf(to, "{\"ranks\":%d,\"offloading\":%s,\"native_because\":", ranks,
            native_because[0] == '\0' ? "true" : "false");
    write_string(to, native_because);
    fputs(",\"per_rank\":[", to);
    for (int rank = 0; rank < ranks; rank++) {
        fputs(rank == 0 ? "" : ",", to);
        write_rank(to, all + (size_t)rank * FIELDS);
    }
    fputs("]}\n", to);
    if (to != stderr)
        fclose(to);
}

void report_write(void)
{
    const char *path = getenv("OUTBOARD_MPI_REPORT");
    int rank, ranks, wanted = path != NULL && path[0] != '\0';
    unsigned long long mine[FIELDS], *all = NULL;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    PMPI_Bcast(&wanted, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!wanted)
        return;
    for (int field = 0; field < FIELDS; field++)
        mine[field] = atomic_load(&fields[field]);
    if (rank == 0)
        all = malloc((size_t)ranks * sizeof mine);
    int room = rank != 0 || all != NULL;
    PMPI_Bcast(&room, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!room)
        return;
    PMPI_Gather(mine, FIELDS, MPI_UNSIGNED_LONG_LONG, all, FIELDS, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0)
        write_all(path, all, ranks);
    free(all);
}
