/*
 * repetitions.h: shared by the programs on transport.h: their common options, the messages to the harness, the common
 * start of all ranks, and the rows made of their samples.
 */
#ifndef REPETITIONS_H
#define REPETITIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Memory filled with zeros; ends the process if memory is short. */
void *allocate(size_t bytes);

/* An option NAME=VALUE, and the one place for its value, as text or as a number. */
struct option {
    const char *name;
    const char **text;
    int *number;
    int64_t *long_number;
};

/* Options of every program. */
struct common {
    const char *control; /* socket of the harness */
    const char *layout;  /* for host_check; NULL: not checked */
    int sizes;           /* sizes to measure, one after the other */
    int parts;           /* numbers of each size */
    int64_t *numbers;    /* all numbers, size by size */
    int repetitions;
    int64_t refill_ns;   /* time after which the token buckets of the links are full again */
    int main_core;       /* -1: not bound */
};

/* Reads the common options and the program's own, a list that ends with a nameless one. A size has the given
 * `shape`, such as "BYTES:CALLS"; commas separate sizes. Ends the process if a word is no option or a size has
 * another shape, and if the rank runs on another host than its layout's. */
struct common read_common(int argc, char **argv, const struct option *own, const char *shape);
/* The numbers of a size. */
const int64_t *size_at(const struct common *common, int at);
/* A size is a list of numbers: the largest of the first numbers, over all sizes. */
int64_t largest_size(const struct common *common);
/* Binds the rank to its core; the library's threads have started before and stay unbound. Rank 0 connects to the
 * harness and sends it the library's name. Other ranks never send anything to the harness. */
void begin_measuring(const struct common *common);

/* Rank 0 sends "begin" or "end" of a phase to the harness. All ranks return when the harness has answered. */
void harness_mark(const char *what);
/* Begins a row; only one row can be open at a time. row_send sends the row to the harness. */
FILE *row_begin(void);
void row_send(FILE *row);

/* Gathers `count` doubles of each rank, in rank order, on all ranks. The caller frees them. */
void *gather_doubles(const void *mine, int count);

/* One number of each sample. Samples are sorted by rank, then by repetition. */
struct field {
    const double *first;
    size_t stride; /* doubles from one sample to the next */
    int repetitions;
};

enum over_ranks { LARGEST, SUM, MEAN };

/* The largest number of a repetition over all ranks but `without` (-1: over all); at least 0. */
double largest_but(const struct field *field, int repetition, int without);
double total_of(const struct field *field);
/* Writes "NAME":[...] with one number for each repetition, and a comma. */
void write_field(FILE *row, const char *name, enum over_ranks over, struct field field);
/* Writes "cpu_s":...,"wrong":..., the sums of both fields. */
void write_costs(FILE *row, struct field cpu_s, struct field wrong);
/* Counts a sample as wrong if its rank ended before another rank had begun. `wrong` is the count in the first sample.
 * Hosts share the clock. */
void mark_early(struct field began_ns, struct field ended_ns, double *wrong);

/* The instant at which all ranks begin: the latest rank's time plus the time in which the token buckets become full
 * again after this exchange. Hosts share the clock, so nothing is on the links at that instant. */
int64_t agree_start(int64_t refill_ns);

#endif
