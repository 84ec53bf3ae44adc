/*
 * repetitions.h: what the programs on transport.h share: the options that all of them have, the talk with the harness,
 * how all ranks begin together, and how their samples become rows.
 */
#ifndef REPETITIONS_H
#define REPETITIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Memory filled with zeros; ends the process where there is none. */
void *allocate(size_t bytes);

/* A word NAME=VALUE of the harness, and the one place that its value goes to: as it is, or as a number. */
struct option {
    const char *name;
    const char **text;
    int *number;
    int64_t *long_number;
};

/* What every program is told. */
struct common {
    const char *control; /* socket of the harness */
    const char *layout;  /* for host_check; NULL: not checked */
    int sizes;           /* what is measured one after the other: so many */
    int parts;           /* numbers that each of them has */
    int64_t *numbers;    /* of size after size */
    int repetitions;
    int64_t refill_ns;   /* what the token buckets of the links need to be full again */
    int main_core;       /* -1: not bound */
};

/* Reads these options and the program's own, a list that ends with one that has no name. A size has the `shape` given,
 * such as "BYTES:CALLS"; commas separate them. Ends the process where a word is no option, a size has another shape, or
 * the rank does not run where the layout has it. */
struct common read_common(int argc, char **argv, const struct option *own, const char *shape);
/* The numbers of a size. */
const int64_t *size_at(const struct common *common, int at);
/* The largest first number of all sizes. */
int64_t largest_size(const struct common *common);
/* Binds the rank to its core, after the library has started its threads, so that they are not born there. Rank 0 finds
 * the harness and tells it what library answers; the functions below do nothing on the others. */
void begin_measuring(const struct common *common);

/* Tells the harness and goes on, on all ranks, when it has answered: "begin" or "end" of a phase. */
void harness_mark(const char *what);
/* A row in the making, one at a time, and its end: what was written goes to the harness. */
FILE *row_begin(void);
void row_send(FILE *row);

/* Doubles of all ranks, so many of each, in rank order: the same on all ranks. To be freed. */
void *gather_doubles(const void *mine, int count);

/* A number of each sample, where samples of all ranks lie repetition after repetition within rank after rank. */
struct field {
    const double *first;
    size_t stride; /* doubles from one sample to the next */
    int repetitions;
};

enum over_ranks { LARGEST, SUM, MEAN };

/* The largest of all ranks but `without` (-1: of all) in a repetition; 0 at least. */
double largest_but(const struct field *field, int repetition, int without);
double total_of(const struct field *field);
/* Writes "NAME":[...], with one number for each repetition, and a comma. */
void write_field(FILE *row, const char *name, enum over_ranks over, struct field field);
/* Writes "cpu_s":...,"wrong":..., the sums of these fields. */
void write_costs(FILE *row, struct field cpu_s, struct field wrong);
/* Counts as wrong the samples in which a rank ended before another one had begun; `wrong` is the first one's count, in
 * samples like those of the fields. Hosts share the clock. */
void mark_early(struct field began_ns, struct field ended_ns, double *wrong);

/* The instant at which all ranks begin: the latest rank's now, and the time that the token buckets of the links need
 * after this very exchange to be full again. Hosts share the clock, so nothing is on the links when it strikes. */
int64_t agree_start(int64_t refill_ns);

#endif
